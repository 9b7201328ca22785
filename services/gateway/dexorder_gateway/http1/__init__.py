"""An HTTP/1.1 server for requests and answers that fit in memory: httptools parses, and a call is no Task.

    bytes -> `reader.RequestReader` -> `Request` -> the handler -> `Answer` -> `answer.encoded` -> bytes

`connection.Connection` is the only part with a socket and a clock.
"""
