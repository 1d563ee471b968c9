-- What a producer is told of a job that exists already, through functions that ask for its payload's digest.

-- name: job_key_known(tenant, project, idempotency_key, organization, kind, payload_digest) each
-- locks nothing; the jobs that have these keys, each with the first thing in which it differs from what is presented
SELECT * FROM tenure.known_keys(%(tenant)b::text[], %(project)b::text[], %(idempotency_key)b::text[], %(organization)b::text[], %(kind)b::text[], %(payload_digest)b::text[]);

-- name: place_known(job_id, payload_digest) each
-- locks nothing; as place_read, of the jobs whose payload has the digest presented
SELECT * FROM tenure.known_places(%(job_id)b::uuid[], %(payload_digest)b::text[]);

-- name: effect_known(job_id, payload_digest) each
-- locks nothing; as effect_read, of the jobs whose payload has the digest presented
SELECT * FROM tenure.known_effects(%(job_id)b::uuid[], %(payload_digest)b::text[]);

-- name: escalation_known(job_id, payload_digest) each
-- locks nothing; as escalation_read, of the jobs whose payload has the digest presented
SELECT * FROM tenure.known_notes(%(job_id)b::uuid[], %(payload_digest)b::text[]);
