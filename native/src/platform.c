/* platform.c - see platform.h. SPDX-License-Identifier: Apache-2.0 */
#include "platform.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <io.h>
#include <malloc.h>
#include <process.h>
#include <windows.h>

void *ifs__aligned_alloc(size_t nbytes) { return _aligned_malloc(nbytes, IFS__ALIGNMENT); }
void ifs__aligned_free(void *block) { _aligned_free(block); }

void ifs__mutex_init(ifs__mutex *mutex) { InitializeSRWLock((SRWLOCK *)mutex); }
void ifs__mutex_destroy(ifs__mutex *mutex) { (void)mutex; }
void ifs__mutex_lock(ifs__mutex *mutex) { AcquireSRWLockExclusive((SRWLOCK *)mutex); }
void ifs__mutex_unlock(ifs__mutex *mutex) { ReleaseSRWLockExclusive((SRWLOCK *)mutex); }

void ifs__condition_init(ifs__condition *condition) { InitializeConditionVariable((CONDITION_VARIABLE *)condition); }
void ifs__condition_destroy(ifs__condition *condition) { (void)condition; }
void ifs__condition_wait(ifs__condition *condition, ifs__mutex *mutex) {
    SleepConditionVariableSRW((CONDITION_VARIABLE *)condition, (SRWLOCK *)mutex, INFINITE, 0);
}
void ifs__condition_wake_all(ifs__condition *condition) { WakeAllConditionVariable((CONDITION_VARIABLE *)condition); }

int ifs__thread_start(ifs__thread *thread, ifs__thread_run *run, void *argument) {
    *thread = (ifs__thread)_beginthreadex(NULL, 0, run, argument, 0, NULL);
    return *thread ? 0 : errno;
}

void ifs__thread_join(ifs__thread thread) {
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}

int64_t ifs__process(void) { return _getpid(); }

/* The path in UTF-16, in memory of malloc; NULL with errno if it is not UTF-8. */
static wchar_t *wide(const char *path) {
    const int count = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    wchar_t *text = count ? malloc((size_t)count * sizeof *text) : NULL;
    if (text)
        MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, text, count);
    else
        errno = count ? ENOMEM : EINVAL;
    return text;
}

static FILE *open_file(const char *path, const wchar_t *mode) {
    wchar_t *text = wide(path);
    FILE *file = text ? _wfopen(text, mode) : NULL;
    free(text);
    return file;
}

static FILE *open_to_read(const char *path) { return open_file(path, L"rbN"); }

static bool stat_file(FILE *file, bool *regular, uint64_t *nbytes) {
    struct _stat64 info;
    if (_fstat64(_fileno(file), &info) != 0)
        return false;
    *regular = (info.st_mode & _S_IFMT) == _S_IFREG;
    *nbytes = (uint64_t)info.st_size;
    return true;
}

FILE *ifs__file_create(const char *path) { return open_file(path, L"wbN"); }

#else
#include <unistd.h>

void *ifs__aligned_alloc(size_t nbytes) {
    void *block = NULL;
    return posix_memalign(&block, IFS__ALIGNMENT, nbytes) ? NULL : block;
}
void ifs__aligned_free(void *block) { free(block); }

void ifs__mutex_init(ifs__mutex *mutex) { pthread_mutex_init(mutex, NULL); }
void ifs__mutex_destroy(ifs__mutex *mutex) { pthread_mutex_destroy(mutex); }
void ifs__mutex_lock(ifs__mutex *mutex) { pthread_mutex_lock(mutex); }
void ifs__mutex_unlock(ifs__mutex *mutex) { pthread_mutex_unlock(mutex); }

void ifs__condition_init(ifs__condition *condition) { pthread_cond_init(condition, NULL); }
void ifs__condition_destroy(ifs__condition *condition) { pthread_cond_destroy(condition); }
void ifs__condition_wait(ifs__condition *condition, ifs__mutex *mutex) { pthread_cond_wait(condition, mutex); }
void ifs__condition_wake_all(ifs__condition *condition) { pthread_cond_broadcast(condition); }

int ifs__thread_start(ifs__thread *thread, ifs__thread_run *run, void *argument) {
    return pthread_create(thread, NULL, run, argument);
}

void ifs__thread_join(ifs__thread thread) { pthread_join(thread, NULL); }

int64_t ifs__process(void) { return getpid(); }

static FILE *open_to_read(const char *path) {
    const int number = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe would wait for a writer */
    FILE *file = number < 0 ? NULL : fdopen(number, "rb");
    if (number >= 0 && !file)
        close(number);
    return file;
}

static bool stat_file(FILE *file, bool *regular, uint64_t *nbytes) {
    struct stat info;
    if (fstat(fileno(file), &info) != 0)
        return false;
    *regular = S_ISREG(info.st_mode);
    *nbytes = (uint64_t)info.st_size;
    return true;
}

FILE *ifs__file_create(const char *path) { return fopen(path, "wb"); }
#endif

ifs_status ifs__file_open(const char *path, FILE **file, uint64_t *nbytes) {
    bool regular = false;
    *file = open_to_read(path);
    if (!*file)
        return ifs__fail(IFS_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    ifs_status status = IFS_OK;
    if (!stat_file(*file, &regular, nbytes))
        status = ifs__fail(IFS_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    else if (!regular)
        status = ifs__fail(IFS_ERR_FORMAT, "%s: not a regular file", path);
    if (status != IFS_OK)
        fclose(*file);
    return status;
}
