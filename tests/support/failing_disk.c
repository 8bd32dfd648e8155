/* A file system that fails, or is slow, for one process: loaded before the C library (LD_PRELOAD).

   What it does is in a file that the process maps and a test writes to: 64-bit words, of this
   process' own byte order. Nothing here knows the server; tests/support/failing_disk.py is the other end. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { STATS, STAT_MICROSECONDS, STAT_ERRNO, READ_ERRNO, READS_FAILED, READ_MICROSECONDS, OUR_STATS, FIRST_STAT = 16 };
enum { WORDS = 1 << 18, RANGES = 64 };

static _Atomic uint64_t *words;
static const char *file; /* what the paths of files have in them that fail and are slow */
static struct { uint64_t first, end; } ranges[RANGES]; /* where such files are mapped */
static atomic_int range_count;

__attribute__((constructor)) static void begin(void) {
    const char *control = getenv("FAILING_DISK");
    file = getenv("FAILING_DISK_FILE");
    if (!control || !file) return;
    int descriptor = syscall(SYS_openat, AT_FDCWD, control, O_RDWR | O_CLOEXEC, 0);
    void *mapped = (void *)syscall(SYS_mmap, NULL, 8ul * WORDS, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (mapped != MAP_FAILED) words = mapped;
}

static void wait_microseconds(uint64_t microseconds) {
    struct timespec pause = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&pause, NULL);
}

static int is_file(const char *path) { return words && path && strstr(path, file); }

static int is_descriptor(int descriptor) {
    char link[64] = "/proc/self/fd/", digits[16], path[4096];
    int count = 0, left = descriptor;
    if (!words || descriptor < 0) return 0;
    do digits[count++] = '0' + left % 10; while (left /= 10);
    char *end = link + strlen(link);
    while (count) *end++ = digits[--count];
    *end = 0;
    long size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_file(path);
}

/* Every stat is noted with its time, of whatever file; those of the files wait or fail. */
static int is_refused(int ours) {
    if (!words) return 0;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t number = words[STATS]++;
    if (number < WORDS - FIRST_STAT) words[FIRST_STAT + number] = now.tv_sec * 1000000000ull + now.tv_nsec;
    if (!ours) return 0;
    words[OUR_STATS]++;
    if (words[STAT_MICROSECONDS]) wait_microseconds(words[STAT_MICROSECONDS]);
    if (!words[STAT_ERRNO]) return 0;
    errno = words[STAT_ERRNO];
    return 1;
}

static int status_of(int folder, const char *path, void *status, int flags) {
    if (is_refused(path && *path ? is_file(path) : is_descriptor(folder))) return -1;
    return syscall(SYS_newfstatat, folder, path, status, flags);
}

#define STATUS_OF_PATH(name, flags) int name(const char *path, void *status) { return status_of(AT_FDCWD, path, status, flags); }
#define STATUS_OF_PATH_VERSION(name, flags) int name(int version, const char *path, void *status) { (void)version; return status_of(AT_FDCWD, path, status, flags); }
STATUS_OF_PATH(stat, 0)
STATUS_OF_PATH(stat64, 0)
STATUS_OF_PATH(lstat, AT_SYMLINK_NOFOLLOW)
STATUS_OF_PATH(lstat64, AT_SYMLINK_NOFOLLOW)
STATUS_OF_PATH_VERSION(__xstat, 0)
STATUS_OF_PATH_VERSION(__xstat64, 0)
STATUS_OF_PATH_VERSION(__lxstat, AT_SYMLINK_NOFOLLOW)
STATUS_OF_PATH_VERSION(__lxstat64, AT_SYMLINK_NOFOLLOW)
int fstat(int descriptor, void *status) { return status_of(descriptor, "", status, AT_EMPTY_PATH); }
int fstat64(int descriptor, void *status) { return status_of(descriptor, "", status, AT_EMPTY_PATH); }
int __fxstat(int version, int descriptor, void *status) { (void)version; return status_of(descriptor, "", status, AT_EMPTY_PATH); }
int __fxstat64(int version, int descriptor, void *status) { (void)version; return status_of(descriptor, "", status, AT_EMPTY_PATH); }
int fstatat(int folder, const char *path, void *status, int flags) { return status_of(folder, path, status, flags); }
int fstatat64(int folder, const char *path, void *status, int flags) { return status_of(folder, path, status, flags); }
int statx(int folder, const char *path, int flags, unsigned mask, void *status) {
    if (is_refused(path && *path ? is_file(path) : is_descriptor(folder))) return -1;
    return syscall(SYS_statx, folder, path, flags, mask, status);
}

static int fails(int descriptor) {
    if (!words || !(words[READ_ERRNO] || words[READ_MICROSECONDS]) || !is_descriptor(descriptor)) return 0;
    if (words[READ_MICROSECONDS]) wait_microseconds(words[READ_MICROSECONDS]);
    if (!words[READ_ERRNO]) return 0;
    words[READS_FAILED]++;
    errno = words[READ_ERRNO];
    return 1;
}

#define PREAD(name) ssize_t name(int descriptor, void *target, size_t size, off_t first) { return fails(descriptor) ? -1 : syscall(SYS_pread64, descriptor, target, size, first); }
#define PREADV(name) ssize_t name(int descriptor, const struct iovec *parts, int count, off_t first) { return fails(descriptor) ? -1 : syscall(SYS_preadv, descriptor, parts, count, first, 0); }
#define PREADV2(name) ssize_t name(int descriptor, const struct iovec *parts, int count, off_t first, int flags) { return fails(descriptor) ? -1 : syscall(SYS_preadv2, descriptor, parts, count, first, 0, flags); }
PREAD(pread)
PREAD(pread64)
PREADV(preadv)
PREADV(preadv64)
PREADV2(preadv2)
PREADV2(preadv64v2)

/* A page of a map that cannot be read: what the kernel copies out of it ends with EFAULT. */
static void *map(void *at, size_t size, int protection, int flags, int descriptor, off_t first) {
    void *mapped = (void *)syscall(SYS_mmap, at, size, protection, flags, descriptor, first);
    if (mapped != MAP_FAILED && !(flags & MAP_ANONYMOUS) && range_count < RANGES && is_descriptor(descriptor)) {
        int index = range_count++;
        ranges[index].first = (uint64_t)mapped;
        ranges[index].end = (uint64_t)mapped + size;
    }
    return mapped;
}
void *mmap(void *at, size_t size, int protection, int flags, int descriptor, off_t first) { return map(at, size, protection, flags, descriptor, first); }
void *mmap64(void *at, size_t size, int protection, int flags, int descriptor, off_t first) { return map(at, size, protection, flags, descriptor, first); }

static int faults(const void *at, size_t size) {
    if (!words || !words[READ_ERRNO]) return 0;
    for (int index = 0; index < range_count; index++)
        if ((uint64_t)at < ranges[index].end && (uint64_t)at + size > ranges[index].first) {
            words[READS_FAILED]++;
            return 1;
        }
    return 0;
}

/* How many parts come before the first one that cannot be read. */
static int readable(const struct iovec *parts, int count) {
    int index = 0;
    while (index < count && !faults(parts[index].iov_base, parts[index].iov_len)) index++;
    return index;
}

static ssize_t bad_address(void) {
    errno = EFAULT;
    return -1;
}

static ssize_t write_parts(int descriptor, const struct iovec *parts, int count, off_t first) {
    int left = readable(parts, count);
    return left || !count ? syscall(SYS_pwritev, descriptor, parts, left, first, 0) : bad_address();
}
ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t first) { return write_parts(descriptor, parts, count, first); }
ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off_t first) { return write_parts(descriptor, parts, count, first); }
ssize_t process_vm_writev(pid_t process, const struct iovec *parts, unsigned long count, const struct iovec *targets, unsigned long target_count, unsigned long flags) {
    int left = readable(parts, count);
    return left || !count ? syscall(SYS_process_vm_writev, process, parts, left, targets, target_count, flags) : bad_address();
}

int madvise(void *at, size_t size, int advice) {
    if (advice == 22 /* MADV_POPULATE_READ */ && faults(at, size)) {
        errno = EFAULT;
        return -1;
    }
    return syscall(SYS_madvise, at, size, advice);
}
