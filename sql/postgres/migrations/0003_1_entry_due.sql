-- Version 3: a window index that no look-up of a key can be planned with, in place of entry_since. While a table is small
-- the two looked alike to the planner, and a session that kept that plan read a whole scope for each duplicate.
-- Three files: an index that is made or dropped while applications work allows no transaction around it. They may be run again.
CREATE INDEX CONCURRENTLY IF NOT EXISTS entry_due ON hapax.entry (scope COLLATE pg_catalog."POSIX", since);
