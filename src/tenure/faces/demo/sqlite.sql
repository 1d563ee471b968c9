-- The demonstration's own tables on SQLite; the order is that of the PostgreSQL twin.

-- name: take_turns() once
-- locks nothing more: a file has one writer
SELECT 1;

-- name: make_schema() once
-- writes nothing: SQLite has no schemas
SELECT 1;

-- name: make_quotes() once
-- writes the table of the application: one row for each accepted quote
CREATE TABLE IF NOT EXISTS quotes (
    run TEXT NOT NULL,
    id TEXT NOT NULL,
    customer TEXT NOT NULL,
    item TEXT NOT NULL,
    total TEXT NOT NULL,
    receipt TEXT,
    sent_by TEXT,
    generation INTEGER,
    PRIMARY KEY (run, id)
);

-- name: make_publications() once
-- writes the table that shows every publish that was committed, overwritten ones too
CREATE TABLE IF NOT EXISTS publications (
    run TEXT NOT NULL,
    quote_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    worker TEXT NOT NULL
);

-- name: make_visits() once
-- writes the table of what a paused worker says before it goes on
CREATE TABLE IF NOT EXISTS visits (
    run TEXT NOT NULL,
    quote_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    place TEXT NOT NULL
);

-- name: accept(run, id, customer, item, total) once
-- writes quotes
INSERT INTO quotes (run, id, customer, item, total) VALUES (:run, :id, :customer, :item, :total);

-- name: mark_sent(run, id, receipt, sent_by, generation) once
-- writes quotes
UPDATE quotes SET receipt = :receipt, sent_by = :sent_by, generation = :generation WHERE run = :run AND id = :id;

-- name: note_publication(run, id, generation, sent_by) once
-- writes publications
INSERT INTO publications (run, quote_id, generation, worker) VALUES (:run, :id, :generation, :sent_by);

-- name: note_visit(run, id, generation, place) once
-- writes visits
INSERT INTO visits (run, quote_id, generation, place) VALUES (:run, :id, :generation, :place);

-- name: quotes_of(run) once
-- reads quotes
SELECT id, receipt, sent_by, generation FROM quotes WHERE run = :run ORDER BY id;

-- name: publications_of(run) once
-- reads publications
SELECT quote_id, generation, worker FROM publications WHERE run = :run ORDER BY quote_id, generation;

-- name: visits_of(run) once
-- reads visits
SELECT quote_id, generation, place FROM visits WHERE run = :run ORDER BY quote_id, generation;

-- name: inside(application) once
-- reads nothing: a lock of a SQLite file is asked for instead
SELECT 0;

-- name: forget_quotes(run) once
-- writes quotes
DELETE FROM quotes WHERE run = :run;

-- name: forget_publications(run) once
-- writes publications
DELETE FROM publications WHERE run = :run;

-- name: forget_visits(run) once
-- writes visits
DELETE FROM visits WHERE run = :run;
