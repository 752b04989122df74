-- Until hapax_gate.sql follows, the sweep of version 2 reads all keys of the scopes it sweeps.
DROP INDEX CONCURRENTLY IF EXISTS hapax.entry_since;
