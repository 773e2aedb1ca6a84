#!/usr/bin/env bash
# Builds the book of docs/ into target/docs, and checks its links. A link to a file outside of docs/ works on a forge.
# In the book it leads to a copy of that file, below files/. Each page names the version, and links to the repository.
set -euo pipefail
cd "$(dirname "$0")/.."

book=target/docs
version=$(scripts/version.sh)
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
rm -rf "$book"
MDBOOK_BOOK__TITLE="idgen $version" MDBOOK_OUTPUT__HTML__GIT_REPOSITORY_URL=$repository mdbook build

# Prints a path as often as the number says.
repeat() { for ((i = 0; i < $2; i++)); do printf '%s' "$1"; done; }

# A page in a folder of depth 2 leaves the book by ../../. mdBook has turned the .md of a link into .html.
find "$book" -name '*.html' -printf '%d %p\n' | while read -r depth page; do
  outside=$(repeat '\.\./' "$depth")
  files=$(repeat '../' $((depth - 1)))files/
  sed -Ei "$page" -e "s,((href|src|srcset)=\")$outside([^\"#]*)\.html,\1$files\3.md,g" \
    -e "s,((href|src|srcset)=\")$outside,\1$files,g"
done

# Prints the page and the target of each link inside of the book.
links() {
  grep -roE --include='*.html' '(href|src|srcset)="[^"#:]+["#]' "$book" | sed -E 's/:(href|src|srcset)="/ /; s/.$//'
}

links | sed -nE 's|^[^ ]* (\.\./)*files/||p' | sort -u | while read -r file; do
  [ -e "$file" ] || { echo "book: there is no $file" >&2; exit 1; }
  mkdir -p "$book/files/$(dirname "$file")"
  cp -RT "$file" "$book/files/$file"
done
links | while read -r page target; do
  [ -e "$(dirname "$page")/$target" ] || { echo "book: $page links to $target, which does not exist" >&2; exit 1; }
done
for text in "idgen $version" "href=\"$repository\""; do
  # The table of contents is a frame of the pages.
  lacking=$(find "$book" -path "$book/files" -prune -o -name '*.html' ! -name toc.html -exec grep -LF "$text" {} + || true)
  [ -z "$lacking" ] || { echo "book: these pages lack $text: $lacking" >&2; exit 1; }
done
echo "==> $book/index.html"
