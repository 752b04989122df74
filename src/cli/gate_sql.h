/* The gate's SQL, embedded at build from sql/postgres. */
#ifndef HAPAX_CLI_GATE_SQL_H
#define HAPAX_CLI_GATE_SQL_H

struct gate_file {
    const char *name; /* "0001_initial.sql", ..., "hapax_gate.sql", "uninstall.sql"; NULL ends the list */
    const char *sql;
};

extern const struct gate_file gate_files[];

#endif
