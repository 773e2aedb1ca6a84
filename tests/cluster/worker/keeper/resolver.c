/*
 * Name resolution with faults. Preloaded into a server, it replaces the C library's getaddrinfo:
 *
 *   two.test      has the addresses 127.0.0.2 and 127.0.0.1, in this order
 *
 * Other names are resolved as usual.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>

static int (*true_getaddrinfo)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

__attribute__((constructor)) static void find(void) {
    true_getaddrinfo = dlsym(RTLD_NEXT, "getaddrinfo");
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    if (!node || strcmp(node, "two.test") != 0)
        return true_getaddrinfo(node, service, hints, found);
    int error = true_getaddrinfo("127.0.0.2", service, hints, found);
    if (error)
        return error;
    struct addrinfo *last = *found;
    while (last->ai_next)
        last = last->ai_next;
    error = true_getaddrinfo("127.0.0.1", service, hints, &last->ai_next);
    if (error)
        freeaddrinfo(*found);
    return error;
}
