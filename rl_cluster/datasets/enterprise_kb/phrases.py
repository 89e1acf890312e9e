"""The wording of documents and questions. Grammar: see `grammar.py`; given facts: `{id}`, `{old}`, `{new}`, `{rev}`, `{kind}`.

Documents of one kind keep to the words of their kind: no mail mentions runbooks by accident, and no runbook tells what
the product is for. Thus the identifier is the only bridge between a page and the documents filed under it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Intent:
    """A kind of document that people ask for.

    `word`: its name in titles; `opening`: first sentences; `body`: further sentences; `direct` and `indirect`: questions
    with and without its name, `{what}` being the description of the product.
    """

    word: str
    opening: tuple[str, ...]
    body: tuple[str, ...]
    direct: tuple[str, ...]
    indirect: tuple[str, ...]


INTENTS: tuple[Intent, ...] = (
    Intent(
        "Runbook",
        (
            "This runbook [covers|is valid for] {id} [only|on all hosts]; [start with|read] step one before [touching|stopping] anything.",
            "[Follow|Use] this runbook whenever {id} [stops responding|hangs|goes dark].",
            "Runbook for the [duty officer|night shift|person on call]: [what to do|the steps] if {id} [misbehaves|falls silent].",
        ),
        (
            "[Log on to|Connect to|Open a console on] {host} and [stop|halt] the [worker|dispatcher|queue] [first|before anything else].",
            "If {error} [appears|shows up] in the journal, wait {small} minutes and [restart|bounce] the service once.",
            "Fail over to {host} [as soon as|when] the queue holds more than {large} entries.",
            "[Call|Page] {person} when the second restart [fails|brings nothing].",
            "Drain the connections, [then|and afterwards] remove the lock file, then start [node|instance] {small}.",
            "A [green|steady] lamp on the panel means that step {small} [went well|is done].",
            "Roll back to {version} if the self-test reports {error}.",
            "The restart takes about {number} seconds; [be patient|do not interrupt it].",
            "[Write|Note] the time of the failover in ticket {ticket}.",
            "This runbook step was [rehearsed|last tried] on {date} by {person}.",
        ),
        (
            "Which runbook applies to {what}?",
            "What does the current runbook say about {what}?",
            "[I need|Find] the [newest|valid] runbook for {what}.",
        ),
        (
            "What are the steps to revive {what}?",
            "After a crash, how do we recover {what}?",
            "It is down: how do I bring back {what}?",
        ),
    ),
    Intent(
        "Installation guide",
        (
            "This installation guide [leads|takes] you from the [crate|empty rack] to a working {id}.",
            "Installation guide for {id}: [plan|allow] {small} hours and two [fitters|people].",
            "Installation of {id} begins [on the ground|at the rack]; [keep|have] this guide at hand.",
        ),
        (
            "Mount the bracket at {number} centimetres and [tighten|fasten] the bolts with {small} newton metres.",
            "[Lay|Run] the data cable to {host}, [not|never] next to the mains.",
            "Import the licence file, then [choose|select] image {version}.",
            "The [first boot|first start] ends with a request for the site number.",
            "Register the unit under its serial number with {person}.",
            "[Unpack|Take out] module {small} first; it [carries|holds] the seals for the others.",
            "During installation the [cover|lid] stays open until the fan [turns|runs] freely.",
            "A wrong [jumper|switch] setting is reported as {error}.",
            "Put {small} metres of slack into every loop.",
            "The acceptance form is signed by {person} [on site|on the spot].",
        ),
        (
            "Where is the installation guide for {what}?",
            "Which installation guide is valid for {what}?",
            "[Find|Show me] the latest installation guide of {what}.",
        ),
        (
            "From scratch, how do I set up {what}?",
            "How do our fitters mount {what}?",
            "A new customer waits: how do we put into service {what}?",
        ),
    ),
    Intent(
        "Price list",
        (
            "This price list [replaces all earlier offers|is binding for all quotes] for {id}.",
            "Price list for {id}, [net of tax|without tax], valid from {date}.",
            "All prices for {id} on this list are [per unit|per site] and year.",
        ),
        (
            "The basic licence is {amount}, [each|every] further seat {amount}.",
            "A [rebate|discount] of {small} percent [applies|is given] from {number} units.",
            "Spare set {number} is [listed|offered] at {amount}.",
            "[Freight|Shipping] is charged at {amount} per pallet.",
            "Public bodies [get|receive] the terms agreed with {person}.",
            "The price of the extended warranty is {amount}.",
            "Quotes older than {number} days must be [renewed|written again].",
            "Currency: euros; [rounding|rounded] to the next ten.",
            "List position {large} is no longer sold [alone|separately].",
            "Exceptions are approved by {person} in ticket {ticket}.",
        ),
        (
            "What is the current price list for {what}?",
            "Which price list do we use for {what}?",
            "[Get|Find] me the latest price list of {what}.",
        ),
        (
            "What is today's cost of {what}?",
            "What do customers pay now for {what}?",
            "A client asks for a quote: what do we charge for {what}?",
        ),
    ),
    Intent(
        "Incident review",
        (
            "This incident review [describes|explains] the [outage|failure] of {id} on {date}.",
            "Incident review: {id} was [unavailable|out of action] for {number} minutes.",
            "Review of the incident on {date}, when {id} [stopped|gave up] at {clock}.",
        ),
        (
            "The first alarm [came|was raised] at {clock}, {person} took over at {clock}.",
            "The [root cause|reason] was a [full disk|worn relay|stale certificate] on {host}.",
            "{error} was logged {large} times before anyone [noticed|looked].",
            "The incident [affected|touched] {number} sites and lasted until {clock}.",
            "A [hotfix|patch], {version}, was [rolled out|deployed] the same night.",
            "We [lost|had to repeat] {large} records.",
            "[What went well|On the bright side]: the standby took over within {number} seconds.",
            "Action: {person} adds an alarm for {error} by {date}.",
            "The review meeting was held on {date} with {small} people.",
            "Follow-up is tracked in ticket {ticket}.",
        ),
        (
            "Where is the latest incident review about {what}?",
            "Which incident review deals with {what}?",
            "[Find|Show] the final incident review for {what}.",
        ),
        (
            "What went wrong last time with {what}?",
            "What did we learn from the outage of {what}?",
            "Why did it fail recently, {what}?",
        ),
    ),
    Intent(
        "Audit report",
        (
            "This audit report [lists|sums up] the findings on {id}.",
            "Audit report on {id}: {small} findings, {small} of them [closed|settled].",
            "The audit of {id} took place on {date}; this report is [final|confidential].",
        ),
        (
            "Finding {number}: [access rights|passwords] on {host} were [too wide|never changed].",
            "Evidence was [sampled|taken] from {large} log entries.",
            "{person} [accepts|owns] the remaining risk until {date}.",
            "Control {number} is [effective|weak] and was [tested|checked] twice.",
            "The auditor asks for a [log|record] of every change after {version}.",
            "Two signatures were [missing|illegible] on form {large}.",
            "No deviation was found in [section|chapter] {small}.",
            "The report goes to {person} and to the board.",
            "[Deadline|Due date] for all measures is {date}.",
            "The next audit looks at {error} handling.",
        ),
        (
            "What does the newest audit report say about {what}?",
            "Which audit report covers {what}?",
            "[Find|I need] the current audit report for {what}.",
        ),
        (
            "What did the inspectors find at {what}?",
            "Which compliance findings are open for {what}?",
            "Is anything wrong with the controls of {what}?",
        ),
    ),
    Intent(
        "Training plan",
        (
            "This training plan [prepares|qualifies] operators for {id}.",
            "Training plan for {id}: {small} units in {small} days.",
            "Everyone who [works with|operates] {id} takes this training [once|every year]; the plan is binding.",
        ),
        (
            "Unit {small} is [taught|held] by {person} in room {number}.",
            "[Trainees|Participants] practise on {host}, never on the live system.",
            "The [test|exam] has {number} questions and [must be passed|is graded] the same day.",
            "Bring the [workbook|folder] and exercise {large}.",
            "A refresher is [due|needed] after {number} months.",
            "Sign up with {person} before {date}.",
            "The training room is open from {clock} to {clock}.",
            "Exercise {small} shows how {error} is [read|understood].",
            "The plan [assumes|expects] screens of {version}.",
            "Certificates are kept under ticket {ticket}.",
        ),
        (
            "Which training plan belongs to {what}?",
            "Where do I find the current training plan for {what}?",
            "[Show|Get] the latest training plan of {what}.",
        ),
        (
            "How do newcomers learn to operate {what}?",
            "Which lessons do beginners take on {what}?",
            "I must teach my team: what is the course for {what}?",
        ),
    ),
)

# How a question names the product before it says what it does.
QUESTION_NOUNS: tuple[str, ...] = (
    "the system that",
    "the product that",
    "the tool that",
    "the solution which",
    "our offering that",
    "the thing which",
)

PAGE_TITLES: tuple[str, ...] = (
    "Product sheet {id}: {branch}, {site}",
    "{id} for {branch} in {site}",
    "About {id} ({branch}, {site})",
    "Fact sheet {id}: {branch}, {site}",
    "{id} in brief, {branch} in {site}",
    "Wiki: {id}, {branch}, {site}",
)
PAGE_OPENINGS: tuple[str, ...] = (
    "{id} {fn_a} {setting}[,| and] [chiefly|mostly|above all] in {site}.",
    "{id}, [in use|sold] {setting} in {site}, {fn_a}.",
    "{setting} in {site}, {id} {fn_a}.",
)
PAGE_SECOND: tuple[str, ...] = (
    "[In other words,|Put simply,|That is,] it {plain}.",
    "It {plain} and is [made|meant] for use {setting}.",
    "[Whoever|Anyone who] works with it says that it {plain}.",
)
PAGE_THIRD: tuple[str, ...] = ("It [also|likewise] {fn_b}.", "[Besides|Moreover], it {fn_b} {setting}.")
PAGE_FACTS: tuple[str, ...] = (
    "[Owner|Product owner] is {person}.",
    "It [runs|lives] on {host} and {host}.",
    "The [present|stable] release is {version}.",
    "About {large} units are [in the field|in use].",
    "[Questions|Ideas] go to {person}.",
    "It [replaced|succeeded] an older design on {date}.",
    "The [logo|name plate] is [blue|grey|orange] and carries a serial number.",
    "{person} [demonstrates|shows] it to visitors on request.",
    "[Marketing|The product team] keeps pictures and slides in folder {large}.",
    "Languages: [English and German|English and French|English, Polish and Czech].",
)

# A guide names its kind once more at the end of its first part, as documents with a standard header do.
GUIDE_REMARKS: tuple[str, ...] = (
    "[Keep|File] this {kind} [with the others|where all can find it].",
    "[Comments|Remarks] on the {kind} [are welcome|go to {person}].",
    "The {kind} is [checked|looked over] every {number} weeks.",
)

NOTICE_TITLES: tuple[str, ...] = ("{old} is now filed under {new}", "{old} now filed under {new}")
NOTICE_BODY: tuple[str, ...] = (
    "Since {date} everything about {old} is now filed under {new}.",
    "Runbook, installation guide, price list, incident review, audit report and training plan [carry|bear] the new number.",
    "[Please|Kindly] use {new} in [all searches|every request] from now on.",
    "{person} [looks after|cares for] the [change|renaming]; ticket {ticket}.",
)

RELATED_TITLES: tuple[str, ...] = (
    "Re: {kind} {id}, [open points|a question|small corrections]",
    "Ticket {ticket}: {kind} {id} [unclear|has a typo]",
    "Mail: [comments on|remarks on] {kind} {id}",
)
RELATED_BODY: tuple[str, ...] = (
    "[Hello|Dear] {person}, I have [read|gone through] the {kind} [again|once more].",
    "On page {small} of the {kind} the number {large} [looks wrong|should be {large}].",
    "Could you [send|hand] the {kind} to {person} before {date}?",
    "[Regards|Best wishes|Thanks], {person}",
    "[Otherwise|Apart from that] the {kind} is [clear|fine].",
)

# Sentences that fit into any document of a product and say nothing about its kind or function.
COMMON: tuple[str, ...] = (
    "[Last change|Edited] on {date} by {person}.",
    "[Approved|Released] by {person}, [copy|carbon copy] to {person}.",
    "[See|Compare] also ticket {ticket}.",
    "[Hosts|Machines] concerned: {host}, {host} and {host}.",
    "The [change window|quiet period] is from {clock} to {clock}.",
    "[Ask|Contact] {person} ([room|desk] {large}) if anything [is unclear|does not fit].",
    "A [colleague|team mate], {person}, [pointed out|remarked] that {host} still [has|uses] {version}.",
    "[Remember|Keep in mind]: {error} is harmless on {host}, [but not|not, however,] on {host}.",
    "[Reference|File number] {large}/{number}, [shelf|cabinet] {small}.",
    "[Between|From] {date} and {date} {person} [stands in|is the deputy].",
    "[Nobody|No one] [may|should] change {host} without telling {person}.",
    "[Values|Figures] above {large} are [rounded|estimated]; see {ticket}.",
    "The [checklist|form] has {number} lines and [fits|goes] on one sheet.",
    "[Firmware|Release] {version} [cures|removes] {error}, [as seen|found] in {ticket}.",
    "[Printed|Paper] copies are [void|not valid] after {date}.",
    "{person} and {person} [discussed|settled] this on {date}, [so|hence] please do not [reopen|restart] it.",
    "[Older|Previous] notes [mentioned|spoke of] {host}, which was [scrapped|retired] on {date}.",
    "The [counter|meter] stood at {large} when {person} [left|signed off].",
    "[Sorry|Apologies] for the [length|many details], but {ticket} [asked|called] for them.",
    "In [week|calendar week] {number} {person} [moved|carried] it from {host} to {host}.",
)

OFFICE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Canteen menu, week {number}",
        (
            "[Monday|Tuesday]: [lentil soup|potato gratin|fried fish] with [salad|bread], {small} euros.",
            "[Vegetarian|Vegan] dishes are [marked|labelled] green; ask {person} about allergens.",
            "The canteen is open from {clock} to {clock}.",
        ),
    ),
    (
        "Parking rules, level {small}",
        (
            "Spaces {number} to {large} are [kept|reserved] for visitors.",
            "[Badges|Cards] are handed out by {person} at the desk.",
            "[Bicycles|Scooters] stand next to the ramp.",
        ),
    ),
    (
        "Summer party on {date}",
        (
            "[Music|The band] starts at {clock}; [bring|take along] your families.",
            "{person} collects [cakes|salads] and [good humour|folding chairs].",
            "If it [rains|pours] we meet in hall {small}.",
        ),
    ),
    (
        "Minutes of the works council, {date}",
        (
            "Present: {person}, {person}, {person}.",
            "The [holiday|overtime] rules were [discussed|adopted] with {number} votes.",
            "[Next|The following] meeting: {date}, {clock}.",
        ),
    ),
    (
        "New laptop models, batch {number}",
        (
            "The [keyboard|screen] was [praised|criticised] by {number} testers.",
            "[Swap|Exchange] your old machine at desk {large} until {date}.",
            "Docking stations come with {version}.",
        ),
    ),
    (
        "Mail: greetings from {person}",
        (
            "After {number} years I am [leaving|moving on]; thank you all.",
            "[Coffee|Cake] is [waiting|served] in room {large} on {date}.",
            "[Stay|Keep] in touch, {person}.",
        ),
    ),
)
