/* Whole pages from the system: zeroed on first touch, returned at once. For tables too large for the heap. */
#ifndef HAPAX_BASE_PAGES_H
#define HAPAX_BASE_PAGES_H

#include <stddef.h>

void *pages_map(size_t bytes) __attribute__((returns_nonnull)); /* reads as zero; costs nothing until touched */
void pages_unmap(void *p, size_t bytes);
/* From then on a thread has the next piece of each size that tables grow by zeroed before it is asked for. Twice: no more than
 * once. One that runs to the end of the process. */
void pages_ahead(void);
/* The contents are no longer needed: the memory goes back, the range stays mapped and reads as zero. */
void pages_give_back(void *p, size_t bytes);

#endif
