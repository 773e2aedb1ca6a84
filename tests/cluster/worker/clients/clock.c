/*
 * The wall clock of the program that it is preloaded into: the true one plus an offset, rounded down to a grain. Both are
 * nanoseconds in the file $IDGEN_CLIENT_CLOCK and take effect as soon as they are written. Sleeps and timeouts stay true,
 * unlike under libfaketime in some languages.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct order {
    int64_t offset, grain;
};
static const volatile struct order *order;

__attribute__((constructor)) static void map_order(void)
{
    int file = open(getenv("IDGEN_CLIENT_CLOCK"), O_RDONLY);
    void *mapped = mmap(NULL, sizeof *order, PROT_READ, MAP_SHARED, file, 0);

    if (mapped == MAP_FAILED)
        abort();
    order = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    long status = syscall(SYS_clock_gettime, clock, now);

    if (status == 0 && clock == CLOCK_REALTIME && order) {
        int64_t ns = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + order->offset;

        ns -= ns % order->grain;
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return (int)status;
}
