-- What the experiments ask a SQLite file for themselves; the order is that of the PostgreSQL twin.

-- name: look() once
-- reads whether the package's tables are there, and whether anything else is
SELECT
    EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'tenure_job'),
    EXISTS (SELECT 1 FROM sqlite_master);

-- name: count_jobs() once
-- reads how many jobs there are
SELECT count(*) FROM tenure_job;

-- name: count_others(run) once
-- reads how many jobs somebody else has created meanwhile
SELECT count(*) FROM tenure_job WHERE tenant <> :run;

-- name: take_backup() once
-- writes nothing: a file is copied by SQLite's own backup
SELECT 1;

-- name: bring_back() once
-- writes nothing: as above
SELECT 1;

-- name: remove_all() once
-- writes nothing: the file is removed
SELECT 1;
