/* What a power cut leaves of the files of one folder: each file as it was at its last fsync, under the names of its
 * folder's last fsync. In the outermost folder also under the name that it had at its own fsync, on which SQLite relies.
 *
 * Loaded by LD_PRELOAD. POWER_CUT_FILES is the folder; POWER_CUT_DURABLE has the folders "inodes", with the synced
 * content of each file, "names", links to them in the same folders, and "linked", the folders whose own names are synced.
 * tests/rig/power_cut.py starts processes with it and cuts the power.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void inode_path(char *into, ino_t inode) {
    snprintf(into, PATH_MAX, "%s/inodes/%lu", getenv("POWER_CUT_DURABLE"), (unsigned long)inode);
}

static void name_path(char *into, const char *folder, const char *name) {
    snprintf(into, PATH_MAX, "%s/%s", folder, name);
}

static void publish(ino_t inode, const char *names, const char *name) {
    char from[PATH_MAX], to[PATH_MAX], part[PATH_MAX];
    inode_path(from, inode);
    name_path(to, names, name);
    snprintf(part, sizeof part, "%s/link.%ld", getenv("POWER_CUT_DURABLE"), (long)syscall(SYS_gettid));
    if (access(from, F_OK) != 0) return;
    if (link(from, part) != 0 || rename(part, to) != 0) abort();
    unlink(part); /* where both were one file already */
}

static void keep_content(int descriptor, ino_t inode) {
    char source[64], whole[PATH_MAX], part[PATH_MAX + 32], buffer[65536];
    snprintf(source, sizeof source, "/proc/self/fd/%d", descriptor);
    inode_path(whole, inode);
    snprintf(part, sizeof part, "%s.%ld", whole, (long)syscall(SYS_gettid));
    int in = open(source, O_RDONLY), out = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (in < 0 || out < 0) abort();
    for (ssize_t size; (size = read(in, buffer, sizeof buffer)) > 0;)
        if (write(out, buffer, size) != size) abort();
    close(in);
    close(out);
    if (rename(part, whole) != 0) abort();
}

static void make_folders(const char *path) {
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(part, 0700);
        *slash = '/';
    }
    mkdir(part, 0700);
}

static void keep_names(const char *folder, const char *names, const char *linked) {
    char path[PATH_MAX];
    struct dirent *entry;
    struct stat found;
    make_folders(names);
    DIR *listed = opendir(folder);
    while (listed && (entry = readdir(listed))) {
        name_path(path, folder, entry->d_name);
        if (entry->d_name[0] == '.' || stat(path, &found) != 0) continue;
        if (S_ISREG(found.st_mode)) publish(found.st_ino, names, entry->d_name);
        if (!S_ISDIR(found.st_mode)) continue;
        name_path(path, linked, entry->d_name);
        make_folders(path);
    }
    if (listed) closedir(listed);
    listed = opendir(names);
    while (listed && (entry = readdir(listed))) {
        name_path(path, folder, entry->d_name);
        if (access(path, F_OK) == 0) continue;
        name_path(path, names, entry->d_name);
        unlink(path);
    }
    if (listed) closedir(listed);
}

static void keep(int descriptor) {
    char link_name[64], path[PATH_MAX], names[PATH_MAX], linked[PATH_MAX], name[PATH_MAX];
    const char *folder = getenv("POWER_CUT_FILES"), *durable = getenv("POWER_CUT_DURABLE");
    struct stat found;
    snprintf(link_name, sizeof link_name, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link_name, path, sizeof path - 1);
    if (size < 0 || folder == NULL || fstat(descriptor, &found) != 0) return;
    path[size] = 0;
    size_t length = strlen(folder);
    if (strncmp(path, folder, length) != 0 || (path[length] != 0 && path[length] != '/')) return;
    snprintf(names, sizeof names, "%s/names%s", durable, path + length);
    snprintf(linked, sizeof linked, "%s/linked%s", durable, path + length);
    if (S_ISDIR(found.st_mode)) {
        keep_names(path, names, linked);
        return;
    }
    char *slash = strrchr(names, '/');
    snprintf(name, sizeof name, "%s", slash + 1);
    keep_content(descriptor, found.st_ino);
    int is_named = access(names, F_OK) == 0 || strchr(path + length + 1, '/') == NULL;
    *slash = 0;
    if (is_named) publish(found.st_ino, names, name);
}

static int synced(const char *function, int descriptor) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, function);
    int result = real(descriptor);
    if (result == 0) keep(descriptor);
    return result;
}

int fsync(int descriptor) { return synced("fsync", descriptor); }

int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }
