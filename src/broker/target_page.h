/* A target as GET /v1/targets shows it. */
#ifndef HAPAX_BROKER_TARGET_PAGE_H
#define HAPAX_BROKER_TARGET_PAGE_H

#include "base/base.h"

struct broker;

void put_target_page(struct broker *b, struct buf *out, u16 queue); /* of a queue that has one */

#endif
