"""Tokens and reserved words of a trigger's text. Pure."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from dexorder_cep.language.refusals import MAX_TEXT_BYTES, MAX_TOKENS, TextPosition, refuse

Kind = Literal["name", "quoted", "number", "text", "symbol", "end"]


# Reserved words of the parser of Flink 2.2.1 (tests/peers/flink/reserved_words.py).
RESERVED = frozenset(
    """
    ABS ALL ALLOCATE ALLOW ALTER AND ANY ARE ARRAY ARRAY_CONCAT_AGG ARRAY_MAX_CARDINALITY AS ASENSITIVE
    ASYMMETRIC AT ATOMIC AUTHORIZATION AVG BEGIN BEGIN_FRAME BEGIN_PARTITION BETWEEN BIGINT BINARY BIT BLOB
    BOOLEAN BOTH BUCKETS BY BYTES CALL CALLED CARDINALITY CASCADED CASE CAST CATALOGS CEIL CEILING CHAR
    CHARACTER CHARACTER_LENGTH CHAR_LENGTH CHECK CLASSIFIER CLOB CLOSE COALESCE COLLATE COLLECT COLUMN COMMENT
    COMMIT CONDITION CONNECT CONSTRAINT CONTAINS CONTAINS_SUBSTR CONTINUOUS CONVERT CORR CORRESPONDING COUNT
    COVAR_POP COVAR_SAMP CREATE CROSS CUBE CUME_DIST CURRENT CURRENT_CATALOG CURRENT_DATE
    CURRENT_DEFAULT_TRANSFORM_GROUP CURRENT_PATH CURRENT_ROLE CURRENT_ROW CURRENT_SCHEMA CURRENT_TIME
    CURRENT_TIMESTAMP CURRENT_TRANSFORM_GROUP_FOR_TYPE CURRENT_USER CURSOR CYCLE DATABASES DATE DATETIME
    DATETIME_TRUNC DATE_TRUNC DAY DEALLOCATE DEC DECIMAL DECLARE DEFAULT DEFINE DELETE DENSE_RANK DEREF DESCRIBE
    DETERMINISTIC DISALLOW DISCONNECT DISTINCT DISTRIBUTED DISTRIBUTION DOT DOUBLE DROP DYNAMIC EACH ELEMENT
    ELSE EMPTY END END_FRAME END_PARTITION EQUALS ESCAPE EVERY EXCEPT EXEC EXECUTE EXISTS EXP EXPLAIN EXTEND
    EXTENDED EXTERNAL EXTRACT FALSE FETCH FILTER FIRST_VALUE FLOAT FLOOR FOR FOREIGN FRAME_ROW FREE FRESHNESS
    FRIDAY FROM FULL FUNCTION FUNCTIONS FUSION GET GLOBAL GRANT GROUP GROUPING GROUPS GROUP_CONCAT HASH HAVING
    HOLD HOUR IDENTITY ILIKE IMPORT IN INCLUDE INDICATOR INITIAL INNER INOUT INSENSITIVE INSERT INT INTEGER
    INTERSECT INTERSECTION INTERVAL INTO IS JOIN JSON_ARRAY JSON_ARRAYAGG JSON_EXISTS JSON_OBJECT JSON_OBJECTAGG
    JSON_QUERY JSON_SCOPE JSON_VALUE LAG LANGUAGE LARGE LAST_VALUE LATERAL LEAD LEADING LEFT LIKE LIKE_REGEX
    LIMIT LN LOCAL LOCALTIME LOCALTIMESTAMP LOWER MATCH MATCHES MATCH_NUMBER MATCH_RECOGNIZE MATERIALIZED MAX
    MEASURES MEMBER MERGE METHOD MIN MINUS MINUTE MOD MODELS MODIFIES MODIFY MODULE MODULES MONDAY MONTH
    MULTISET NATIONAL NATURAL NCHAR NCLOB NEW NEXT NO NONE NORMALIZE NOT NTH_VALUE NTILE NULL NULLIF NUMERIC
    OCCURRENCES_REGEX OCTET_LENGTH OF OFFSET OLD OMIT ON ONE ONLY OPEN OR ORDER ORDINAL OUT OUTER OVER OVERLAPS
    OVERLAY PARAMETER PARTITION PATTERN PER PERCENT PERCENTILE_CONT PERCENTILE_DISC PERCENT_RANK PERIOD PERMUTE
    PIVOT PORTION POSITION POSITION_REGEX POWER PRECEDES PRECISION PREPARE PREV PRIMARY PROCEDURE PROCEDURES
    QUALIFY QUARTERS RANGE RANK RAW READS REAL RECURSIVE REF REFERENCES REFERENCING REFRESH REFRESH_MODE
    REGR_AVGX REGR_AVGY REGR_COUNT REGR_INTERCEPT REGR_R2 REGR_SLOPE REGR_SXX REGR_SXY REGR_SYY RELEASE RENAME
    RESET RESULT RESUME RETURN RETURNS REVOKE RIGHT RLIKE ROLLBACK ROLLUP ROW ROWS ROW_NUMBER RUNNING SAFE_CAST
    SAFE_OFFSET SAFE_ORDINAL SATURDAY SAVEPOINT SCALA SCOPE SCROLL SEARCH SECOND SEEK SELECT SENSITIVE SEPARATOR
    SESSION_USER SET SHOW SIMILAR SKIP SMALLINT SOME SPECIFIC SPECIFICTYPE SQL SQLEXCEPTION SQLSTATE SQLWARNING
    SQRT START STATEMENT STATIC STDDEV_POP STDDEV_SAMP STREAM STRING STRING_AGG STRUCTURED SUBMULTISET SUBSET
    SUBSTRING SUBSTRING_REGEX SUCCEEDS SUM SUNDAY SUSPEND SYMMETRIC SYSTEM SYSTEM_TIME SYSTEM_USER TABLE TABLES
    TABLESAMPLE THEN THURSDAY TIME TIMESTAMP TIMESTAMP_DIFF TIMESTAMP_LTZ TIMESTAMP_TRUNC TIMEZONE_HOUR
    TIMEZONE_MINUTE TIME_DIFF TIME_TRUNC TINYINT TO TRAILING TRANSLATE TRANSLATE_REGEX TRANSLATION TREAT TRIGGER
    TRIM TRIM_ARRAY TRUE TRUNCATE TRY_CAST TUESDAY UESCAPE UNION UNIQUE UNKNOWN UNNEST UNPIVOT UPDATE UPPER
    UPSERT USE USER USING VALUE VALUES VALUE_OF VARBINARY VARCHAR VARIANT VARYING VAR_POP VAR_SAMP VERSIONING
    VIEWS WATERMARK WATERMARKS WEDNESDAY WEEKS WHEN WHENEVER WHERE WIDTH_BUCKET WINDOW WITH WITHIN WITHOUT YEAR
    """.split()  # noqa: SIM905 - 429 quoted strings are longer to read
)
"""Words that are names only in back quotes."""

COLUMNS_WITHOUT_QUOTES = frozenset({"OPEN", "CLOSE"})
"""Reserved words that this engine accepts as columns without quotes, unlike Flink."""


class Token(NamedTuple):
    """Token with its place.

    Attributes:
        kind: ``name`` (not quoted), ``quoted`` (in back quotes), ``number``, ``text`` (a string), ``symbol``, ``end``.
        text: As written; of a quoted name or a string, the content.
    """

    kind: Kind
    text: str
    at: TextPosition

    @property
    def word(self) -> str:
        """The name in upper case if it is not quoted, the symbol, otherwise the empty string."""
        return self.text.upper() if self.kind == "name" else self.text if self.kind == "symbol" else ""


_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
  | (?P<name>[A-Za-z_][A-Za-z0-9_$]*)
  | `(?P<quoted>[^`]+)`
  | '(?P<text>(?:[^']|'')*)'
  | (?P<symbol><>|!=|<=|>=|\|\||\{-|-\}|[-+*/%=<>().,;{}?^$|\[\]:])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def tokenize(sql: str) -> list[Token]:
    """Return the tokens of a text, ended by one of kind ``end``.

    Raises:
        InvalidSql: The text is too long or has a character that no token starts with.
    """
    start = TextPosition(1, 1)
    if len(sql) > MAX_TEXT_BYTES or len(sql.encode(errors="surrogatepass")) > MAX_TEXT_BYTES:
        raise refuse(start, f"the text has more than {MAX_TEXT_BYTES} bytes")
    found: list[Token] = []
    line, line_start, index = 1, 0, 0
    while index < len(sql):
        at = TextPosition(line, index - line_start + 1)
        match = _TOKEN.match(sql, index)
        if match is None:
            raise refuse(at, _unreadable(sql[index]))
        kind = match.lastgroup or ""
        if kind != "space":
            text = match[kind].replace("''", "'") if kind == "text" else match[kind]
            found.append(Token(kind, text, at))  # type: ignore[arg-type]
            if len(found) > MAX_TOKENS:
                raise refuse(at, f"the text has more than {MAX_TOKENS} words and symbols")
        breaks = match[0].count("\n")
        if breaks:
            line += breaks
            line_start = index + match[0].rindex("\n") + 1
        index = match.end()
    found.append(Token("end", "", TextPosition(line, index - line_start + 1)))
    return found


def _unreadable(character: str) -> str:
    if character in "'`":
        return f"the {'string' if character == chr(39) else 'quoted name'} is not closed"
    if character == '"':
        return "a double quote is not accepted: strings have single quotes, names have back quotes (`close`)"
    return f"unexpected character {character!r}"
