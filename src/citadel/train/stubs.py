"""Boilerplate that documents of real collections consist of: "See also", "Page 3 of 12", "© 2019"."""

from __future__ import annotations

import numpy as np

PHRASES = """
About this page|Abstract|Accept cookies|Acknowledgements|Add a comment|Add to cart|
Advanced search|All rights reserved|All topics|Appendix|Archive|Article not found|
Ask a question|Attachment|Author|Back|Back to top|Background|Basic information|Bibliography|
Blank page|Browse by category|By topic|Cancel|Caption|Change log|Chapter|Check back soon|
Choose a language|Close|Close window|Coming soon|Comments are closed|Company|Conclusion|
Conclusions|Contact us|Content|Continue|Continue reading|Cookie policy|Copyright notice|
Credits|Data not available|Date|Default|Deleted|Description|Description pending|Details|
Disclaimer|Discussion|Document|Documentation|Done|Download|Download PDF|Draft|Edit|
Edit this page|Email address|Empty|Enter your name|Error|Example|Examples|Expand all|
External links|FAQ|Feedback|Figure|File|Find out more|First page|Follow us|Footnotes|
For more information|Foreword|Forgot your password|Frequently asked questions|From our blog|
Full text|Further reading|General|Get started|Glossary|Go|Go back|Go to the main page|
Header|Help|Hide|History|Home|Home page|How to cite|How to use this site|Image|Imprint|
In brief|Index|Info|Information|Internal use only|Item|Keywords|Label|Last modified|
Last page|Last updated|Learn more|Leave a reply|Legal notice|License|Link|Links|List|
List of figures|List of tables|Load more|Loading|Loading, please wait|Log in|Log out|
Lorem ipsum|Main menu|Main page|Menu|Message|Methods|Misc|Missing|More|More details|
More information|My account|Name|Navigation|New page|News|Newsletter|Next|Next page|
No abstract available|No comments yet|No data|No description|No description provided|
No results|No results found|No text|No title|None|Not applicable|Not available|Not found|
Note|Notes|Notes and references|Nothing here|Null|OK|Old version|On this page|Open|Options|
Other|Other resources|Overview|Page|Page intentionally left blank|Page not found|Parts|
Permalink|Placeholder|Please log in|Please wait|Powered by|Preface|Press release|Previous|
Previous page|Print|Print this page|Privacy|Privacy policy|Purpose|Questions|Quick links|
Read more|Read more about this|Redirected from|Refer to the text|Refresh|Register|Related|
Related articles|Related topics|Remarks|Remove|Reply|Report a problem|Required field|
Reserved|Results|Return to the top|Sample|Sample text|Save|Scope|Search|Search results|
Section|See above|See below|See the text|Select all|Send|Settings|Share|Share this page|
Show all|Show less|Sign in|Sign up|Site map|Skip to content|Sort by|Source|Source unknown|
Sponsored|Start|Status|Stub|Submit|Subscribe|Subject|Summary|Support|Switch language|Tags|
Temp|Term|Terms of use|Test|Test document|Test page|Text|Thank you|
Thank you for your feedback|The author|The document is empty|The end|This article is a stub|
This page has moved|This section is empty|This text was removed|Title|To be announced|
To be continued|To be done|Toggle navigation|Tools|Top|Topics|Translate|Try again|Type here|
Unavailable|Unknown|Unnamed|Untitled|Untitled document|Update|Updated|Upload|
Use of this site|User guide|Various|Version|View|View all|View details|View larger image|
View source|Visit our website|Warning|Was this helpful|Website|Welcome|What is new|Yes|
You are here|Your comment|Your name
""".replace("\n", "").split("|")

_SIGNS = [".", "..", "…", "-", "--", "—", "*", "***", "?", "!", "/", "•", "#", "###", "&", "=", "[]", "()"]
_NUMBERED = [
    "Page {}",
    "Page {} of {}",
    "Chapter {}",
    "Section {}.{}",
    "Figure {}",
    "Fig. {}",
    "Table {}",
    "Part {}",
    "No. {}",
    "{}.{}",
    "({})",
    "[{}]",
    "{}",
    "{}",
    "{}%",
    "Vol. {}, no. {}",
    "pp. {}–{}",
    "Step {}",
    "Version {}.{}",
    "Example {}",
    "Exercise {}.{}",
    "Item {}",
    "Note {}",
    "Eq. ({})",
    "Appendix {}",
]
_DATED = [
    "{}",
    "© {}",
    "(c) {}",
    "Copyright © {}",
    "{}-01-15",
    "January {}",
    "3 May {}",
    "{}/07/09",
    "Last updated: {}",
    "Published {}",
    "Posted in {}",
    "Received 12 March {}",
    "© {} The authors",
    "Revised {}",
    "Printed in {}",
]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def draw_stub(rng: np.random.Generator) -> str:
    """Draw a text of boilerplate.

    >>> rng = np.random.default_rng(1)
    >>> all(0 < len(draw_stub(rng)) < 60 for _ in range(100))
    True
    """
    kind = rng.random()
    if kind < 0.55:
        return _cased(PHRASES[rng.integers(len(PHRASES))].strip(), rng)
    if kind < 0.75:
        number, other = (int(10 ** (3 * rng.random())) for _ in range(2))
        return _NUMBERED[rng.integers(len(_NUMBERED))].format(number, other)
    if kind < 0.87:
        return _DATED[rng.integers(len(_DATED))].format(rng.integers(1950, 2031))
    if kind < 0.96:
        return _SIGNS[rng.integers(len(_SIGNS))] * int(rng.integers(1, 4))
    return _LETTERS[rng.integers(len(_LETTERS))].upper()


def _cased(text: str, rng: np.random.Generator) -> str:
    ends = ("", "", "", ".", ":", "...", " »")
    return text + ends[rng.integers(len(ends))]
