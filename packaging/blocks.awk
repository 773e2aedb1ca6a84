# Splits a page of the documentation into the blocks that psql runs: NN.sql, and NN.out if the page shows exactly what
# psql prints. The rules are those of tests/cluster/docs. Set `to` to the directory.
/^```/ && fence { fence = 0; next }
/^```sql$/ { fence = 1; file = sprintf("%s/%02d.sql", to, ++n); shown = 1; next }
/^```text$/ && shown { fence = 1; file = sprintf("%s/%02d.out", to, n); shown = 0; next }
/^```/ { fence = 1; file = "/dev/null"; shown = 0; next }
fence { print >file; next }
NF { shown = 0 }
