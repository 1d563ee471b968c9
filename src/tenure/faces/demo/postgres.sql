-- The demonstration's own tables on PostgreSQL, in a schema of their own; the order is that of the SQLite twin.

-- name: take_turns() once
-- locks what two runs that begin together would both make
SELECT pg_advisory_xact_lock(7265031);

-- name: make_schema() once
-- writes the schema
CREATE SCHEMA IF NOT EXISTS tenure_demo;

-- name: make_quotes() once
-- writes the table of the application: one row for each accepted quote
CREATE TABLE IF NOT EXISTS tenure_demo.quotes (
    run text NOT NULL,
    id text NOT NULL,
    customer text NOT NULL,
    item text NOT NULL,
    total text NOT NULL,
    receipt text,
    sent_by text,
    generation bigint,
    PRIMARY KEY (run, id)
);

-- name: make_publications() once
-- writes the table that shows every publish that was committed, overwritten ones too
CREATE TABLE IF NOT EXISTS tenure_demo.publications (
    run text NOT NULL,
    quote_id text NOT NULL,
    generation bigint NOT NULL,
    worker text NOT NULL
);

-- name: make_visits() once
-- writes the table of what a paused worker says before it goes on
CREATE TABLE IF NOT EXISTS tenure_demo.visits (
    run text NOT NULL,
    quote_id text NOT NULL,
    generation bigint NOT NULL,
    place text NOT NULL
);

-- name: accept(run, id, customer, item, total) once
-- writes quotes
INSERT INTO tenure_demo.quotes (run, id, customer, item, total)
VALUES (%(run)s, %(id)s, %(customer)s, %(item)s, %(total)s);

-- name: mark_sent(run, id, receipt, sent_by, generation) once
-- writes quotes
UPDATE tenure_demo.quotes SET receipt = %(receipt)s, sent_by = %(sent_by)s, generation = %(generation)s
WHERE run = %(run)s AND id = %(id)s;

-- name: note_publication(run, id, generation, sent_by) once
-- writes publications
INSERT INTO tenure_demo.publications (run, quote_id, generation, worker)
VALUES (%(run)s, %(id)s, %(generation)s, %(sent_by)s);

-- name: note_visit(run, id, generation, place) once
-- writes visits
INSERT INTO tenure_demo.visits (run, quote_id, generation, place)
VALUES (%(run)s, %(id)s, %(generation)s, %(place)s);

-- name: quotes_of(run) once
-- reads quotes
SELECT id, receipt, sent_by, generation FROM tenure_demo.quotes WHERE run = %(run)s ORDER BY id;

-- name: publications_of(run) once
-- reads publications
SELECT quote_id, generation, worker FROM tenure_demo.publications WHERE run = %(run)s ORDER BY quote_id, generation;

-- name: visits_of(run) once
-- reads visits
SELECT quote_id, generation, place FROM tenure_demo.visits WHERE run = %(run)s ORDER BY quote_id, generation;

-- name: inside(application) once
-- reads how many transactions of one process are open
SELECT count(*) FROM pg_stat_activity WHERE application_name = %(application)s AND xact_start IS NOT NULL;

-- name: forget_quotes(run) once
-- writes quotes
DELETE FROM tenure_demo.quotes WHERE run = %(run)s;

-- name: forget_publications(run) once
-- writes publications
DELETE FROM tenure_demo.publications WHERE run = %(run)s;

-- name: forget_visits(run) once
-- writes visits
DELETE FROM tenure_demo.visits WHERE run = %(run)s;
