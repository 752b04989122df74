/* fs_shutdown MOUNTPOINT: a power cut for one ext4 file system. Nothing in the page cache and nothing in the ext4 log
 * that was not yet written reaches the disk; every later write fails with EIO until the file system is mounted anew.
 * Needs root and a file system nobody else wants: a loop mount made for the test. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define SHUTDOWN_REQUEST      _IOR('X', 125, uint32_t)
#define SHUTDOWN_NO_LOG_FLUSH 2u

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: fs_shutdown MOUNTPOINT\n");
        return 2;
    }
    int fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint32_t how = SHUTDOWN_NO_LOG_FLUSH;
    if (fd < 0 || ioctl(fd, SHUTDOWN_REQUEST, &how) != 0) {
        perror(argv[1]);
        return 1;
    }
    close(fd);
    return 0;
}
