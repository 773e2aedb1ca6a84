/* Keeps what a loss of power leaves of idgen's files: the content of a file as it was last synced, and the names of a
 * directory as they were last synced. Preloaded into a server, whose working directory is the data directory. They are in
 * the directory $IDGEN_POWER, by the numbers of inodes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    abort();
}

/* All of it or nothing, because the server may be killed meanwhile. */
static void keep(const char *kind, ino_t inode, const char *data, size_t length) {
    char path[4096], unfinished[4200];
    snprintf(path, sizeof path, "%s/%s.%lu", getenv("IDGEN_POWER"), kind, (unsigned long)inode);
    snprintf(unfinished, sizeof unfinished, "%s.%d", path, getpid());
    int fd = open(unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, data, length) != (ssize_t)length || close(fd) != 0 || rename(unfinished, path) != 0)
        fail(path);
}

static void keep_names(const char *path, ino_t inode, int is_data) {
    char names[65536] = "";
    size_t at = 0;
    DIR *directory = opendir(path);
    if (!directory)
        fail(path);
    for (struct dirent *entry; (entry = readdir(directory));)
        if (entry->d_name[0] != '.' && (!is_data || strncmp(entry->d_name, "idgen", 5) == 0))
            at += snprintf(names + at, sizeof names - at, "%d %lu %s\n", entry->d_type == DT_DIR,
                           (unsigned long)entry->d_ino, entry->d_name);
    closedir(directory);
    keep("names", inode, names, at);
}

static void keep_content(const char *path, ino_t inode) {
    static char data[1 << 20];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, data, sizeof data);
    /* Renamed or removed since. */
    if (length < 0 && errno == ENOENT)
        return;
    if (length < 0 || close(fd) != 0)
        fail(path);
    keep("content", inode, data, length);
}

static void synced(int fd) {
    char link[64], path[4096], data[4096];
    struct stat stat;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || !getcwd(data, sizeof data) || fstat(fd, &stat) != 0)
        fail("fsync");
    path[length] = 0;
    size_t root = strlen(data);
    if (strncmp(path, data, root) == 0) {
        if (path[root] == 0)
            keep_names(path, stat.st_ino, 1);
        else if (strncmp(path + root, "/idgen", 6) == 0 && S_ISDIR(stat.st_mode))
            keep_names(path, stat.st_ino, 0);
        else if (strncmp(path + root, "/idgen", 6) == 0)
            keep_content(path, stat.st_ino);
    }
    errno = before;
}

int fsync(int fd) {
    static int (*true_fsync)(int);
    if (!true_fsync)
        *(void **)&true_fsync = dlsym(RTLD_NEXT, "fsync");
    int outcome = true_fsync(fd);
    if (outcome == 0 && getenv("IDGEN_POWER"))
        synced(fd);
    return outcome;
}
