# Sourced by the scripts that fill the cache.

# make_once DIRECTORY FUNCTION: makes a directory, unless it exists. The function works in the directory $work, and leaves
# the result in $work/result. A subshell, so that its lock and trap end with it.
make_once() (
  directory=$1
  work=$directory.making
  mkdir -p "${directory%/*}"
  exec 9>"$directory.lock"
  flock 9 # another checkout may make the same
  [ ! -d "$directory" ] || exit 0
  rm -rf --one-file-system "$work" # a killed run leaves it
  trap 'rm -rf --one-file-system "$work"' EXIT
  mkdir "$work"
  "$2"
  mv "$work/result" "$directory" # atomic: an existing directory is complete
)
