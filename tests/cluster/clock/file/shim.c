/*
 * Faults of the high-water file. Preloaded into a server, it replaces the C library's functions that open, write and sync.
 * Calls for other files pass through.
 *
 * The file $IDGEN_SHIM_CONTROL, read at each call, has the fault:
 *
 *   none                         nothing
 *   write|fsync|open ERROR       the call fails with this error and has no effect
 *   tear ERROR                   the call writes half of the record and fails
 *   fsync hold                   the call does not return until the file has another order; signals do not end it
 *   syncdir ERROR                fsync of the data directory fails, which makes the name of the file durable
 *   ... once                     the first call only
 *
 * Each call is a line of $IDGEN_SHIM_LOG: the call, the offset or -, the outcome, and the bytes of a write.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RECORD = 512 };

struct order {
    char call[16], what[16], times[16];
};

static ssize_t (*true_write)(int, const void *, size_t);
static ssize_t (*true_pwrite)(int, const void *, size_t, off_t);
static int (*true_fsync)(int), (*true_fdatasync)(int), (*true_open)(const char *, int, ...);
static const char *control_path, *log_path;

/* Copied at load: the server later overwrites its environment with its process title. */
static const char *copy_of(const char *variable) {
    const char *value = getenv(variable);
    return value ? strdup(value) : NULL;
}

/* Constructors of other libraries may run first and make calls. */
__attribute__((constructor)) static void find(void) {
    if (true_open)
        return;
    true_write = dlsym(RTLD_NEXT, "write");
    true_pwrite = dlsym(RTLD_NEXT, "pwrite");
    true_fsync = dlsym(RTLD_NEXT, "fsync");
    true_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    true_open = dlsym(RTLD_NEXT, "open");
    control_path = copy_of("IDGEN_SHIM_CONTROL");
    log_path = copy_of("IDGEN_SHIM_LOG");
}

static int is_ours(const char *path) {
    return strstr(path, "idgen.tmp/") || strstr(path, "idgen/clock");
}

static int is_our_file(int fd) {
    char link[64], path[4096];
    if (!control_path || !log_path)
        return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    path[length < 0 ? 0 : length] = 0;
    return is_ours(path);
}

/* The data directory is the working directory of every server process. */
static int is_data_directory(int fd) {
    struct stat here, other;
    int before = errno;
    int is_it = control_path && log_path && stat(".", &here) == 0 && fstat(fd, &other) == 0 &&
                here.st_dev == other.st_dev && here.st_ino == other.st_ino;
    errno = before;
    return is_it;
}

static struct order current_order(void) {
    struct order order = {"none", "", ""};
    char text[64] = "";
    int fd = true_open(control_path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, text, sizeof text - 1) > 0)
            sscanf(text, "%15s %15s %15s", order.call, order.what, order.times);
        close(fd);
    }
    return order;
}

/* True if there is an order for this call. An order with "once" is given to one caller only. */
static int is_ordered(struct order *order, const char *call) {
    *order = current_order();
    if (strcmp(order->call, call) != 0)
        return 0;
    char done[4096];
    snprintf(done, sizeof done, "%s.done", control_path);
    return strcmp(order->times, "once") != 0 || rename(control_path, done) == 0;
}

static int error_number(const char *name) {
    static const struct {
        const char *name;
        int number;
    } known[] = {{"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EROFS", EROFS}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i].number;
    abort();
}

static void tell(const char *call, long offset, const char *outcome, const unsigned char *data, size_t length) {
    char line[64 + 2 * RECORD];
    int at = offset < 0 ? snprintf(line, 64, "%s - %s", call, outcome)
                        : snprintf(line, 64, "%s %ld %s", call, offset, outcome);
    if (length > 0)
        line[at++] = ' ';
    for (size_t i = 0; i < length && i < RECORD; i++)
        at += snprintf(line + at, 3, "%02x", data[i]);
    line[at++] = '\n';
    int fd = true_open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || true_write(fd, line, at) != at)
        abort();
    close(fd);
}

static ssize_t write_at(int fd, const void *data, size_t length, off_t offset, int positioned) {
    struct order order;
    int torn = is_ordered(&order, "tear");
    if (torn || is_ordered(&order, "write")) {
        if (torn)
            true_pwrite(fd, data, length / 2, offset);
        tell(torn ? "tear" : "write", offset, order.what, data, length);
        errno = error_number(order.what);
        return -1;
    }
    ssize_t written = positioned ? true_pwrite(fd, data, length, offset) : true_write(fd, data, length);
    int after = errno;
    tell("write", offset, written == (ssize_t)length ? "ok" : "short", data, length);
    errno = after;
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    find();
    return is_our_file(fd) ? write_at(fd, data, length, offset, 1) : true_pwrite(fd, data, length, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    return pwrite(fd, data, length, offset);
}

ssize_t write(int fd, const void *data, size_t length) {
    find();
    return is_our_file(fd) ? write_at(fd, data, length, lseek(fd, 0, SEEK_CUR), 0) : true_write(fd, data, length);
}

static int sync_by(int (*true_sync)(int), int fd) {
    struct order order;
    if (is_data_directory(fd)) {
        if (is_ordered(&order, "syncdir")) {
            tell("syncdir", -1, order.what, NULL, 0);
            errno = error_number(order.what);
            return -1;
        }
        int result = true_sync(fd), after = errno;
        tell("syncdir", -1, result == 0 ? "ok" : "failed", NULL, 0);
        errno = after;
        return result;
    }
    if (!is_our_file(fd))
        return true_sync(fd);
    if (is_ordered(&order, "fsync")) {
        if (strcmp(order.what, "hold") != 0) {
            tell("fsync", -1, order.what, NULL, 0);
            errno = error_number(order.what);
            return -1;
        }
        tell("fsync", -1, "held", NULL, 0);
        struct timespec pause = {0, 5000000};
        do {
            nanosleep(&pause, NULL);
            order = current_order();
        } while (strcmp(order.call, "fsync") == 0 && strcmp(order.what, "hold") == 0);
    }
    int result = true_sync(fd), after = errno;
    tell("fsync", -1, result == 0 ? "ok" : "failed", NULL, 0);
    errno = after;
    return result;
}

int fsync(int fd) {
    find();
    return sync_by(true_fsync, fd);
}

int fdatasync(int fd) {
    find();
    return sync_by(true_fdatasync, fd);
}

static int open_by(const char *path, int flags, mode_t mode) {
    find();
    struct order order;
    int writes = (flags & O_ACCMODE) != O_RDONLY;
    if (writes && control_path && log_path && is_ours(path) && is_ordered(&order, "open")) {
        tell("open", -1, order.what, NULL, 0);
        errno = error_number(order.what);
        return -1;
    }
    return true_open(path, flags, mode);
}

#define MODE(flags, mode)                  \
    mode_t mode = 0;                       \
    if (flags & (O_CREAT | O_TMPFILE)) {   \
        va_list rest;                      \
        va_start(rest, flags);             \
        mode = va_arg(rest, mode_t);       \
        va_end(rest);                      \
    }

int open(const char *path, int flags, ...) {
    MODE(flags, mode)
    return open_by(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(flags, mode)
    return open_by(path, flags | O_LARGEFILE, mode);
}
