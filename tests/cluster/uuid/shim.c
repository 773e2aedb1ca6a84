/*
 * A random source that fails. Preloaded into a server, it replaces OpenSSL's function, from which PostgreSQL has its random
 * bits. While the file $IDGEN_SHIM_CONTROL exists, it fails for a kilobyte or more: PostgreSQL itself asks for a few bytes,
 * without which no session starts.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int (*true_bytes)(unsigned char *, int);
static const char *control;

/* Copied at load: the server later overwrites its environment with its process title. */
__attribute__((constructor)) static void find(void) {
    const char *path = getenv("IDGEN_SHIM_CONTROL");
    control = path ? strdup(path) : NULL;
    true_bytes = dlsym(RTLD_NEXT, "RAND_bytes");
}

int RAND_bytes(unsigned char *bytes, int count) {
    if (count >= 1024 && control && access(control, F_OK) == 0)
        return 0;
    if (!true_bytes)
        find();
    return true_bytes(bytes, count);
}
