/*
 * The name under which the librdrand of 2013 had its functions. New programs include <rdrand.h>.
 *
 * Licensed under MIT OR Apache-2.0.
 */
#ifndef LIBRDRAND_LIBRDRAND_H
#define LIBRDRAND_LIBRDRAND_H

#include <rdrand.h>

#endif /* LIBRDRAND_LIBRDRAND_H */
