/* Tests of targets: is one reached? At most TARGET_TESTS at a time, and none that has an effect (target_reach.c). */
#ifndef HAPAX_BROKER_TARGET_REACH_H
#define HAPAX_BROKER_TARGET_REACH_H

#include "base/base.h"

#define TARGET_TESTS 16u

struct broker;
struct call;
struct target_tests;

struct target_tests *target_tests_new(void);
void target_tests_free(struct target_tests *t);

bool target_test_room(struct call *c); /* false: the failure is set */
/* The call is answered when the target has been reached, or has not. false: the failure is set. */
bool target_test_start(struct call *c, u16 queue);

#endif
