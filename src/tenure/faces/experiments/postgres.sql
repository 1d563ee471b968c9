-- What the experiments ask a PostgreSQL database for themselves; the order is that of the SQLite twin.

-- name: look() once
-- reads whether the package's tables are there, and whether schemas of the same names as ours are
SELECT
    to_regclass('tenure.job') IS NOT NULL,
    EXISTS (
        SELECT FROM pg_namespace WHERE nspname IN ('tenure', 'tenure_demo', 'tenure_lab_backup')
    );

-- name: count_jobs() once
-- reads how many jobs there are
SELECT count(*) FROM tenure.job;

-- name: count_others(run) once
-- reads how many jobs somebody else has created meanwhile
SELECT count(*) FROM tenure.job WHERE tenant <> %(run)s;

-- name: take_backup() once
-- writes a copy of every row of every table, as a dump holds it
DO $$
DECLARE
    one record;
BEGIN
    CREATE SCHEMA tenure_lab_backup;
    FOR one IN SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('tenure', 'tenure_demo') LOOP
        EXECUTE format(
            'CREATE TABLE tenure_lab_backup.%%I AS TABLE %%I.%%I',
            one.schemaname || '.' || one.tablename, one.schemaname, one.tablename
        );
    END LOOP;
END
$$;

-- name: bring_back() once
-- locks every table; writes what the copy holds in the place of what is there
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('tenure', 'tenure_demo') LOOP
        EXECUTE format('TRUNCATE %%I.%%I', one.schemaname, one.tablename);
        EXECUTE format(
            'INSERT INTO %%I.%%I OVERRIDING SYSTEM VALUE TABLE tenure_lab_backup.%%I',
            one.schemaname, one.tablename, one.schemaname || '.' || one.tablename
        );
    END LOOP;
END
$$;

-- name: remove_all() once
-- locks every table; removes all that the experiment made
DROP SCHEMA IF EXISTS tenure, tenure_demo, tenure_lab_backup CASCADE;
