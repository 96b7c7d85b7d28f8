/*
 * The name under which the librdrand of 2013 had its AES functions. New programs include
 * <rdrand.h>.
 *
 * Licensed under MIT OR Apache-2.0.
 */
#ifndef LIBRDRAND_LIBRDRAND_AES_H
#define LIBRDRAND_LIBRDRAND_AES_H

#include <rdrand.h>
#include <stdlib.h>

#endif /* LIBRDRAND_LIBRDRAND_AES_H */
