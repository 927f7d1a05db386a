#include "common/sock_path.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

int sock_path_error(struct errbuf *eb, int rv, const char *path) {
    char dir[256] = ".";
    const char *slash = strrchr(path, '/');
    struct stat st;
    if (slash)
        snprintf(dir, sizeof(dir), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (stat(dir, &st) < 0)
        return err_set(eb, rv, "'%s': the directory '%s' %s", path, dir,
                       errno == ENOENT ? "does not exist" : "cannot be reached");
    if (!S_ISDIR(st.st_mode))
        return err_set(eb, rv, "'%s': '%s' is no directory", path, dir);
    if (access(dir, W_OK | X_OK) < 0)
        return err_set(eb, rv, "'%s': no right to write in the directory '%s'", path, dir);
    return err_set(eb, rv, "'%s': %s", path, err_text(rv));
}
