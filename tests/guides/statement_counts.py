"""Counts the statements of cases, by pg_stat_statements."""


def run_cases(fetch, cases, names):
    """Runs the named cases. Prints, for each statement that one ran, the case, the number of calls, and the beginning."""
    for name in names:
        fetch("SELECT pg_stat_statements_reset()")
        cases[name]()
        counted = fetch(
            """SELECT calls, left(regexp_replace(query, E'\\\\s+', ' ', 'g'), 60)
               FROM pg_stat_statements JOIN pg_database ON pg_database.oid = dbid
               WHERE datname = current_database()"""
        )
        for calls, query in counted:
            print(name, calls, query, sep="\t")
