-- What a producer is told of a job that exists already, through functions that ask for its payload's digest.

-- name: place_known(job_id, payload_digest) each
-- locks nothing; as place_read, of the jobs whose payload has the digest presented
SELECT * FROM tenure.known_places(%(job_id)b::uuid[], %(payload_digest)b::text[]);

-- name: effect_known(job_id, payload_digest) each
-- locks nothing; as effect_read, of the jobs whose payload has the digest presented
SELECT * FROM tenure.known_effects(%(job_id)b::uuid[], %(payload_digest)b::text[]);

-- name: escalation_known(job_id, payload_digest) each
-- locks nothing; as escalation_read, of the jobs whose payload has the digest presented
SELECT * FROM tenure.known_notes(%(job_id)b::uuid[], %(payload_digest)b::text[]);
