#!/usr/bin/env bash
# test-in-image.sh PG: runs the quickstart in the root where it runs, on a new cluster. As in a container of the image,
# nothing but initdb writes a configuration.
set -euo pipefail

pg_ctl() { runuser -u postgres -- "/usr/lib/postgresql/$pg/bin/pg_ctl" -D /tmp/data -s -w "$@"; }

pg=$1
pg_ctl initdb -o "--auth trust --encoding UTF8" >/dev/null
pg_ctl start -l /tmp/data/log -o "-c idgen.worker_id=0 -c wal_level=logical -c timezone=UTC" || { cat /tmp/data/log; exit 1; }
/packages/quickstart.sh
pg_ctl stop
