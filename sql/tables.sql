-- Without IF NOT EXISTS: another role may own an existing schema of this name.
CREATE SCHEMA idgen;

-- Segments, one row for each tag. The constraints refuse rows that no values can come from, also in a restore. The trigger sets
-- creation, version and the two transaction ids, and refuses a lower max_id.
CREATE TABLE idgen.segment (
    tag text PRIMARY KEY
        CHECK (pg_catalog.octet_length(tag) OPERATOR(pg_catalog.>=) 1
               AND pg_catalog.octet_length(tag) OPERATOR(pg_catalog.<=) 255),
    max_id bigint NOT NULL DEFAULT 0 CHECK (max_id OPERATOR(pg_catalog.>=) (-1)),
    step bigint NOT NULL DEFAULT 1000,
    min_step bigint NOT NULL DEFAULT 1000 CHECK (min_step OPERATOR(pg_catalog.>=) 1),
    max_step bigint NOT NULL DEFAULT 10000000 CHECK (max_step OPERATOR(pg_catalog.<=) 1000000000),
    target_duration interval NOT NULL DEFAULT '1 second' CHECK (target_duration OPERATOR(pg_catalog.>) '0 seconds'),
    stride bigint NOT NULL DEFAULT 1 CHECK (stride OPERATOR(pg_catalog.>=) 1 AND stride OPERATOR(pg_catalog.<=) 2147483647),
    residue bigint NOT NULL DEFAULT 0 CHECK (residue OPERATOR(pg_catalog.>=) 0),
    upper_bound bigint NOT NULL DEFAULT 9223372036854775807,
    owner regrole NOT NULL,
    -- 0, shown as "-", is PUBLIC.
    drawers regrole[] NOT NULL DEFAULT '{}',
    creation bigint NOT NULL UNIQUE,
    version bigint NOT NULL,
    created_in bigint NOT NULL,
    changed_in bigint NOT NULL,
    server bigint,
    reserve interval CHECK (reserve OPERATOR(pg_catalog.>=) '2 seconds' AND reserve OPERATOR(pg_catalog.<=) '365 days'),
    source text,
    history text,
    received bigint,
    servers regrole[] NOT NULL DEFAULT '{}',
    CHECK (step OPERATOR(pg_catalog.>=) min_step AND step OPERATOR(pg_catalog.<=) max_step),
    CHECK (residue OPERATOR(pg_catalog.<) stride),
    CHECK (max_id OPERATOR(pg_catalog.<=) upper_bound),
    CHECK (server IS NOT NULL OR reserve IS NULL)
) WITH (fillfactor = 50); -- room for updated rows, so that a refill touches no index
-- A dump names roles. The row of a dropped role has its OID, which can be another role's where the dump is restored. So the dump
-- gives its segments to the owner of the database, and omits its grants. Nor does it name the transactions: a restore that
-- disables the trigger keeps their numbers, which belong to other transactions where it runs. And a restored database must not
-- pass for the one that granted: it has no history. The columns are those of the table, in order.
SELECT pg_catalog.pg_extension_config_dump('idgen.segment', $condition$WHERE false UNION ALL
    SELECT tag, max_id, step, min_step, max_step, target_duration, stride, residue, upper_bound,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END,
           ARRAY(SELECT granted.role FROM pg_catalog.unnest(drawers) WITH ORDINALITY AS granted (role, place)
                 WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                    OR EXISTS (SELECT FROM pg_catalog.pg_roles AS role
                               WHERE role.oid OPERATOR(pg_catalog.=) granted.role::pg_catalog.oid)
                 ORDER BY granted.place),
           creation, version, 0, 0, server, reserve, source, CASE WHEN history IS NOT NULL THEN '' END, received,
           ARRAY(SELECT granted.role FROM pg_catalog.unnest(servers) WITH ORDINALITY AS granted (role, place)
                 WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                    OR EXISTS (SELECT FROM pg_catalog.pg_roles AS role
                               WHERE role.oid OPERATOR(pg_catalog.=) granted.role::pg_catalog.oid)
                 ORDER BY granted.place)
    FROM idgen.segment$condition$);

-- At a coordinator: the servers that are attached to a tag. They outlive it: a tag that is created again must not repeat their
-- values. A restored database has no history, as above.
CREATE TABLE idgen.segment_server (
    tag text NOT NULL,
    server bigint NOT NULL,
    name text NOT NULL,
    max_id bigint NOT NULL,
    history text NOT NULL,
    reported_at timestamptz NOT NULL,
    -- Not in use: a dump of an earlier version has these columns.
    first_id bigint,
    last_id bigint,
    PRIMARY KEY (tag, server)
) WITH (fillfactor = 50); -- as for idgen.segment
SELECT pg_catalog.pg_extension_config_dump('idgen.segment_server', $condition$WHERE false UNION ALL
    SELECT tag, server, name, max_id, '', reported_at, NULL, NULL FROM idgen.segment_server$condition$);

-- Definitions of leases.
CREATE TABLE idgen.lease_definition (
    name text PRIMARY KEY
        CHECK (pg_catalog.octet_length(name) OPERATOR(pg_catalog.>=) 1
               AND pg_catalog.octet_length(name) OPERATOR(pg_catalog.<=) 255),
    slots int NOT NULL CHECK (slots OPERATOR(pg_catalog.>=) 1 AND slots OPERATOR(pg_catalog.<=) 65536),
    ttl interval NOT NULL CHECK (ttl OPERATOR(pg_catalog.>) '0 seconds'),
    lock_delay interval NOT NULL CHECK (lock_delay OPERATOR(pg_catalog.>=) '0 seconds'),
    owner regrole NOT NULL,
    first_slot int NOT NULL DEFAULT 0 CHECK (first_slot OPERATOR(pg_catalog.>=) 0),
    notify boolean NOT NULL DEFAULT false,
    CHECK (first_slot OPERATOR(pg_catalog.<=) (65536 OPERATOR(pg_catalog.-) slots))
);
SELECT pg_catalog.pg_extension_config_dump('idgen.lease_definition', $condition$WHERE false UNION ALL
    SELECT name, slots, ttl, lock_delay,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END, first_slot, notify
    FROM idgen.lease_definition$condition$);

-- Fencing tokens. A dump contains neither the sequence nor the terms: the server that restores it has no holders.
CREATE SEQUENCE idgen.lease_token;
-- Past the tokens of an extension that was dropped: a session that raised its sequence does not raise this one.
SELECT pg_catalog.setval('idgen.lease_token', (pg_catalog.extract('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint);

-- Slots and their current or last terms. Times are microseconds of the clock in the column clock.
CREATE TABLE idgen.lease (
    name text NOT NULL,
    slot int NOT NULL,
    token bigint NOT NULL,
    depth int NOT NULL,
    owner text,
    role regrole NOT NULL,
    data jsonb,
    acquired_at timestamptz NOT NULL,
    ttl_us bigint NOT NULL,
    ends_us bigint NOT NULL,
    clock text NOT NULL,
    revoked boolean NOT NULL,
    session bigint,
    session_key bigint,
    PRIMARY KEY (name, slot),
    -- A new token changes a key, so it waits for fences, which hold FOR KEY SHARE. A renewal does not. The token is first:
    -- where most leases have one slot, the planner takes any index that begins with the name, even to find one slot of many.
    UNIQUE (token, name)
) WITH (fillfactor = 50); -- free space on each page, so that renewals are HOT updates

-- The id times of the last holder of each worker id (column number). The rows outlive leases, pools and a dump: the next
-- holder begins after them.
CREATE TABLE idgen.worker_number (
    pool text NOT NULL,
    number int NOT NULL,
    not_before timestamptz NOT NULL,
    not_after timestamptz NOT NULL,
    token bigint NOT NULL,
    owner text,
    released boolean NOT NULL DEFAULT false,
    PRIMARY KEY (pool, number)
) WITH (fillfactor = 50);
-- To find free worker ids without reading a pool. They are here because an index on the end of a term in idgen.lease would
-- cost every lease an entry for each renewal and each release. An owner can be longer than an index allows.
CREATE INDEX worker_number_released ON idgen.worker_number (pool, not_after) WHERE released;
CREATE INDEX worker_number_unreleased ON idgen.worker_number (pool, not_after) WHERE NOT released;
CREATE INDEX worker_number_owner ON idgen.worker_number (pool, pg_catalog.hashtext(owner), token) WHERE owner IS NOT NULL;
SELECT pg_catalog.pg_extension_config_dump('idgen.worker_number', '');

-- The server, timeline, database and data directory that grant worker ids from this database, to detect that another one
-- continues with its data. At most one row.
CREATE TABLE idgen.worker_history (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    system_identifier bigint NOT NULL,
    timeline int NOT NULL,
    database oid NOT NULL,
    place text NOT NULL,
    since timestamptz NOT NULL,
    first_token bigint NOT NULL,
    longest interval NOT NULL
);
-- A restored database must not pass for the one that granted.
SELECT pg_catalog.pg_extension_config_dump('idgen.worker_history', $condition$WHERE false UNION ALL
    SELECT one, 0, 0, 0::oid, place, since, first_token, longest FROM idgen.worker_history$condition$);

-- Keys of public ids, one row for each key of a prefix. A retired key has no secret. Its row stays, because its texts may
-- still be in use: a prefix has at most one key of the short form, ever.
CREATE TABLE idgen.public_key (
    prefix text NOT NULL
        CHECK ((prefix COLLATE pg_catalog."C") OPERATOR(pg_catalog.~) '^[a-z]([a-z0-9_]{0,61}[a-z0-9])?$'),
    version int NOT NULL CHECK (version OPERATOR(pg_catalog.>=) 1 AND version OPERATOR(pg_catalog.<=) 1000000000),
    form text NOT NULL CHECK (form OPERATOR(pg_catalog.=) ANY (ARRAY['short', 'long'])),
    secret bytea CHECK (pg_catalog.octet_length(secret) OPERATOR(pg_catalog.=) 32),
    owner regrole NOT NULL,
    -- 0, shown as "-", is PUBLIC.
    users regrole[] NOT NULL DEFAULT '{}'
        CHECK (pg_catalog.array_position(users, NULL) IS NULL
               AND coalesce(pg_catalog.array_ndims(users), 1) OPERATOR(pg_catalog.=) 1),
    created timestamptz NOT NULL DEFAULT pg_catalog.now(),
    retired timestamptz,
    PRIMARY KEY (prefix, version),
    CHECK ((secret IS NULL) OPERATOR(pg_catalog.=) (retired IS NOT NULL))
);
-- ANALYZE would keep secrets that are retired or dropped.
ALTER TABLE idgen.public_key ALTER COLUMN secret SET STATISTICS 0;
CREATE UNIQUE INDEX public_key_one_short ON idgen.public_key (prefix) WHERE form OPERATOR(pg_catalog.=) 'short';
-- As for segments, a dump gives the keys of a dropped role to the owner of the database, and omits its grants.
SELECT pg_catalog.pg_extension_config_dump('idgen.public_key', $condition$WHERE false UNION ALL
    SELECT prefix, version, form, secret,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END,
           ARRAY(SELECT granted.role FROM pg_catalog.unnest(users) WITH ORDINALITY AS granted (role, place)
                 WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                    OR EXISTS (SELECT FROM pg_catalog.pg_roles AS role
                               WHERE role.oid OPERATOR(pg_catalog.=) granted.role::pg_catalog.oid)
                 ORDER BY granted.place),
           created, retired
    FROM idgen.public_key$condition$);
