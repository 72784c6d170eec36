"""The page: live frames, connections, rules, firings and captures in a browser, served by the admin port.

Input: the application of the admin API.  Output: one that also serves the page at `/` (`app.py`), with logins
by one-time links (`sessions.py`).  The page is `static/`: HTML, CSS and ES modules as
they are, without a build step, and `ops.js`, which is made of the table of operations; it uses the API as any
program does, and loads nothing from elsewhere.

Subjects, headers and payloads are hostile: scripts put them into text nodes and never into markup, and a
content security policy runs no script but those files.  Read `static/main.js` first.
"""
