/* The memory a broker may take is the least that its control group, or one above it, allows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/process.h"

static char root[256];

static void put(const char *path, const char *text) {
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *p = whole + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(whole, 0700);
        *p = '/';
    }
    FILE *f = fopen(whole, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void without_control_groups_there_is_no_bound(void **state) {
    (void)state;
    assert_int_equal(process_memory_max(root), 0);
    put("/proc/self/cgroup", "0::/\n");
    assert_int_equal(process_memory_max(root), 0);
}

static void in_a_container_the_roots_limit_holds(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    assert_int_equal(process_memory_max(root), 0);
    put("/sys/fs/cgroup/memory.max", "1073741824\n");
    assert_int_equal(process_memory_max(root), 1073741824);
    put("/sys/fs/cgroup/memory.max", "max\n");
}

static void a_services_own_limit_holds_and_the_one_of_its_slice(void **state) {
    (void)state;
    put("/proc/self/cgroup", "4:memory:/elsewhere\n0::/system.slice/hapaxd.service\n");
    assert_int_equal(process_memory_max(root), 0);
    put("/sys/fs/cgroup/system.slice/hapaxd.service/memory.max", "4294967296\n");
    assert_int_equal(process_memory_max(root), 4294967296);
    put("/sys/fs/cgroup/system.slice/memory.max", "2147483648\n");
    assert_int_equal(process_memory_max(root), 2147483648);
    put("/sys/fs/cgroup/system.slice/memory.max", "max\n");
    assert_int_equal(process_memory_max(root), 4294967296);
}

static int make_root(void **state) {
    (void)state;
    const char *folder = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/hapax-process-XXXXXX", folder ? folder : "/tmp");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_control_groups_there_is_no_bound),
        cmocka_unit_test(in_a_container_the_roots_limit_holds),
        cmocka_unit_test(a_services_own_limit_holds_and_the_one_of_its_slice),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
