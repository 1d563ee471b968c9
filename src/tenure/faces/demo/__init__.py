"""
The demonstration: real quotes, real processes, real kills, and a count of what the customers got.

    quotes.py    reads the input file
    studio.py    the application: tables, one kind, one provider; what a user would write
    books.py     the application's tables, as the demonstration reads them
    worker.py    the program of a worker process
    breaks.py    the broken variants, applied inside a worker process
    crew.py      starts, kills, stops and continues processes, and ends them all
    story.py     the acts, in order
    verdict.py   what is counted, and which promise a count breaks
    tell.py      lines and tables for people
"""
