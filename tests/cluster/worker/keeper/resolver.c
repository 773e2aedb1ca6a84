/*
 * Name resolution with faults. Preloaded into a server, it replaces the C library's getaddrinfo:
 *
 *   hangs.test    never returns, and no signal ends the call
 *   two.test      has the addresses 127.0.0.2 and 127.0.0.1, in this order
 *
 * Other names are resolved as usual. Each call for hangs.test appends a byte to the file $IDGEN_RESOLVER_LOG.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int (*true_getaddrinfo)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
static const char *log_path;

/* Reads the environment at load: the server later overwrites it with its process title. */
__attribute__((constructor)) static void find(void) {
    const char *path = getenv("IDGEN_RESOLVER_LOG");
    true_getaddrinfo = dlsym(RTLD_NEXT, "getaddrinfo");
    log_path = path ? strdup(path) : NULL;
}

static void hang(void) {
    int fd = log_path ? open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (fd < 0 || write(fd, "x", 1) != 1)
        abort();
    close(fd);
    for (;;)
        pause();
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    if (node && strcmp(node, "hangs.test") == 0)
        hang();
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
