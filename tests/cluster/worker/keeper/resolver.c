/*
 * Name resolution with faults. Preloaded into a server, it replaces the C library's getaddrinfo:
 *
 *   five.test     has four times the address 127.0.0.2, and then 127.0.0.1
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
    static const char *const addresses[] = {"127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.1"};
    if (!node || strcmp(node, "five.test") != 0)
        return true_getaddrinfo(node, service, hints, found);
    struct addrinfo **end = found;
    *found = NULL;
    for (int i = 0; i < 5; i++) {
        int error = true_getaddrinfo(addresses[i], service, hints, end);
        if (error) {
            if (*found)
                freeaddrinfo(*found);
            return error;
        }
        while (*end)
            end = &(*end)->ai_next;
    }
    return 0;
}
