"""An HTTP/1.1 server for requests and answers that fit in memory: httptools parses, and a call is no Task.

    bytes -> `reader.RequestReader` -> `HttpRequest` -> the handler -> `HttpAnswer` -> `answer.encoded` -> bytes

`connection.HttpConnection` is the only part with a socket and a clock.
"""
