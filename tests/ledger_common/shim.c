/* Makes system calls on the files under FENCEGATE_FOLDER fail as the file FENCEGATE_SHIM says. Loaded by
 * tests/ledger_faults.rs with LD_PRELOAD. The file's first byte:
 *   S  each fsync fails with EIO
 *   s  one fsync fails with EIO, then all is well
 *   L  each fsync fails with EIO, and what was written since the last good one is lost
 *   K  all is well, and what each file holds at a good fsync is kept for O
 *   O  one fsync fails with EIO, and the file is found as it was kept
 *   R  one fsync fails with EIO, and what was durable before is lost as well
 *   P  "P SEED SKIP": after SKIP good fsyncs the power fails during one: of each page that was written since the
 *      last good one either the old or the new content is found, by chance
 *   M  one fsync is good, and then the folder has another name, with ".away" behind it
 *   W  each write fails with EIO
 *   F  each write and each growth fails with ENOSPC
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char used;

/* What each file held at its last good fsync. */
static struct durable { ino_t inode; size_t len, kept_len; char *bytes, *kept; } files[64];

static int ours(int fd) {
    char link[64], path[4096];
    const char *folder = getenv("FENCEGATE_FOLDER");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 0 || !folder) return 0;
    path[len] = 0;
    return !strncmp(path, folder, strlen(folder));
}

static char asked_for[64];

static char asked(void) {
    char byte = 0;
    int fd = syscall(SYS_open, getenv("FENCEGATE_SHIM"), O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        char text[64] = {0};
        if (syscall(SYS_read, fd, text, sizeof text - 1) > 0) byte = text[0];
        if (byte == 'P') memcpy(asked_for, text, sizeof text);
        syscall(SYS_close, fd);
    }
    return byte;
}

static struct durable *durable_of(int fd, size_t *len) {
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) return 0;
    *len = st.st_size;
    for (int i = 0; i < 64; i++) {
        if (!files[i].inode) files[i].inode = st.st_ino;
        if (files[i].inode == st.st_ino) return &files[i];
    }
    abort();
}

static void remember(int fd) {
    size_t len;
    struct durable *file = durable_of(fd, &len);
    if (!file) return;
    file->bytes = realloc(file->bytes, len + 1);
    file->len = len;
    if (syscall(SYS_pread64, fd, file->bytes, len, 0) != (long)len) abort();
}

static void keep(int fd) {
    size_t len;
    struct durable *file = durable_of(fd, &len);
    if (!file) return;
    file->kept = realloc(file->kept, file->len + 1);
    file->kept_len = file->len;
    memcpy(file->kept, file->bytes, file->len);
}

static void go_back(int fd) {
    size_t len;
    struct durable *file = durable_of(fd, &len);
    if (!file || !file->kept) return;
    if (syscall(SYS_ftruncate, fd, file->kept_len)) abort();
    if (syscall(SYS_pwrite64, fd, file->kept, file->kept_len, 0) != (long)file->kept_len) abort();
}

static void lose(int fd, int durable_too) {
    size_t len;
    struct durable *file = durable_of(fd, &len);
    if (!file || !file->bytes) return;
    if (durable_too) memset(file->bytes + 4096, 0, file->len - 4096);
    if (syscall(SYS_ftruncate, fd, file->len)) abort();
    if (syscall(SYS_pwrite64, fd, file->bytes, file->len, 0) != (long)file->len) abort();
}

/* The power fails: the disk wrote some of the pages, in any order. */
static void cut_power(int fd, unsigned long seed) {
    size_t len;
    struct durable *file = durable_of(fd, &len);
    if (file) {
        size_t old = file->bytes ? file->len : 0;
        for (size_t at = 0; at < old; at += 4096) {
            seed = seed * 6364136223846793005ul + 1442695040888963407ul;
            if (seed >> 63) continue;
            size_t part = old - at < 4096 ? old - at : 4096;
            if (syscall(SYS_pwrite64, fd, file->bytes + at, part, at) != (long)part) abort();
        }
        if (seed & (1ul << 62) && syscall(SYS_ftruncate, fd, old)) abort();
    }
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static void rename_folder(void) {
    char away[4096];
    const char *folder = getenv("FENCEGATE_FOLDER");
    snprintf(away, sizeof away, "%s.away", folder);
    if (rename(folder, away)) abort();
}

static unsigned long synced;

static int sync_call(long number, int fd) {
    if (!ours(fd)) return syscall(number, fd);
    pthread_mutex_lock(&lock);
    char what = asked();
    int once = what == 's' || what == 'R' || what == 'O' || what == 'M';
    int now = what == 'S' || what == 'L' || (once && !used);
    int fails = now && what != 'M';
    used = once && (used || now);
    int result = -1;
    unsigned long seed = 0, skip = 0;
    if (what == 'P' && sscanf(asked_for, "P %lu %lu", &seed, &skip) == 2 && synced++ >= skip) cut_power(fd, seed);
    if (what != 'P') synced = 0;
    if (!fails) {
        result = syscall(number, fd);
        if (!result) remember(fd);
        if (!result && what == 'K') keep(fd);
        if (now) rename_folder();
    } else if (what == 'O') {
        go_back(fd);
    } else if (what == 'L' || what == 'R') {
        lose(fd, what == 'R');
    }
    pthread_mutex_unlock(&lock);
    if (fails) errno = EIO;
    return result;
}

int fsync(int fd) { return sync_call(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_call(SYS_fdatasync, fd); }

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at) {
    char what = ours(fd) ? asked() : 0;
    if (what == 'W') { errno = EIO; return -1; }
    if (what == 'F') { errno = ENOSPC; return -1; }
    return syscall(SYS_pwrite64, fd, bytes, len, at);
}
ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) { return pwrite64(fd, bytes, len, at); }

int ftruncate64(int fd, off64_t len) {
    struct stat st;
    if (ours(fd) && asked() == 'F' && !fstat(fd, &st) && len > st.st_size) { errno = ENOSPC; return -1; }
    return syscall(SYS_ftruncate, fd, len);
}
int ftruncate(int fd, off_t len) { return ftruncate64(fd, len); }
