#!/bin/sh
# pg_rewind for Patroni: keeps the member's own high-water mark, the directory idgen, which pg_rewind would replace with
# the new leader's. Set bin_name.pg_rewind in patroni.yml to the path of this script.
set -u
pg_rewind=/usr/lib/postgresql/15/bin/pg_rewind

data='' option=''
for argument; do
  [ "$option" = -D ] && data=$argument
  option=$argument
done
while [ "$data" != "${data%/}" ]; do data=${data%/}; done
# Patroni also calls it with --help.
if [ -z "$data" ] || { [ ! -d "$data/idgen" ] && [ ! -d "$data.idgen" ]; }; then
  exec "$pg_rewind" "$@"
fi

# A call that was interrupted has left the own mark there, and idgen can be the leader's by now. A server that has started
# since then went on from idgen. It has written postmaster.opts, which pg_rewind removes. The copy has the time of that
# file, and any other time shows the start: the clock may have been set back.
options=$data/postmaster.opts
if [ ! -d "$data.idgen" ] ||
  { [ -e "$options" ] && { [ "$options" -nt "$data.idgen" ] || [ "$options" -ot "$data.idgen" ]; }; }; then
  rm -rf "$data.idgen" "$data.idgen.new"
  cp -a "$data/idgen" "$data.idgen.new" || exit 1
  touch -r "$options" "$data.idgen.new" 2>/dev/null || touch "$data.idgen.new" || exit 1
  sync && mv "$data.idgen.new" "$data.idgen" && sync || exit 1
fi
"$pg_rewind" "$@"
status=$?
# mv into a mount point copies and then removes. Killed between the two, it would leave half of the own mark to the next
# call.
rm -rf "$data/idgen"
cp -a "$data.idgen" "$data/idgen" && sync && mv "$data.idgen" "$data.idgen.new" || exit 1
rm -rf "$data.idgen.new"
exit "$status"
