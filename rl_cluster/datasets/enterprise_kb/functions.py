"""What the products of the company do, each told in two vocabularies.

Pages describe a function in technical words and in plain ones, questions in yet other plain words: page and question
share meaning and as few words as possible, so that only a search by meaning leads from one to the other.
"""

from __future__ import annotations

from typing import NamedTuple


class Function(NamedTuple):
    """Verb phrases in the third person: two technical ones and a plain one for pages, one for questions."""

    technical: tuple[str, str]
    plain: str
    asked: str


FUNCTIONS: tuple[Function, ...] = (
    Function(
        (
            "draws up the weekly rota and fills gaps in the roster",
            "assigns shifts to employees and swaps them on demand",
        ),
        "decides when each member of staff comes in",
        "makes the work timetable of our employees",
    ),
    Function(
        ("matches supplier invoices with purchase orders", "reconciles incoming invoices against goods received"),
        "verifies whether a vendor's bill is what we really bought",
        "compares what suppliers charge us with what they sent",
    ),
    Function(
        ("detects water leaks in pipes by sound", "listens to pipework and locates seeping joints"),
        "notices when plumbing is dripping",
        "discovers burst pipes by listening",
    ),
    Function(
        ("keeps freezers at their set temperature", "regulates cold rooms and alerts on thawing"),
        "makes sure the chilled storage stays frozen",
        "holds frozen goods at the right degree of cold",
    ),
    Function(
        ("transcribes handwritten forms into structured records", "recognises handwriting on scanned paper"),
        "turns pen-filled sheets into data",
        "reads pen-and-ink sheets into the computer",
    ),
    Function(
        ("translates customer letters into the clerk's language", "renders foreign correspondence in English"),
        "helps us understand mail written in other tongues",
        "puts letters from abroad into our own language",
    ),
    Function(
        ("predicts bearing wear from vibration", "forecasts when a rotating machine will break"),
        "tells in advance that a motor is about to fail",
        "says beforehand which motors are going to break down",
    ),
    Function(
        ("computes the shortest delivery route for vans", "plans the order of stops for drivers"),
        "works out which way couriers should travel",
        "finds the best road for couriers with parcels",
    ),
    Function(
        ("counts visitors at entrances with ceiling sensors", "measures footfall at every door"),
        "knows how many people walked in",
        "tallies the people passing through an entrance",
    ),
    Function(
        ("monitors ambient noise and logs decibel peaks", "records sound levels around the clock"),
        "observes how loud it gets",
        "observes how loud the surroundings are",
    ),
    Function(
        ("reserves meeting rooms and releases unused bookings", "handles conference room reservations"),
        "lets colleagues claim a space for their get-togethers",
        "lets colleagues claim a room for their talks",
    ),
    Function(
        (
            "archives contracts and reminds owners of expiry dates",
            "stores signed agreements and tracks renewal deadlines",
        ),
        "warns us before a legal deal runs out",
        "watches when legal agreements run out",
    ),
    Function(
        ("dims the lighting according to daylight", "controls lamps by presence and sunshine"),
        "switches bulbs off when nobody is around",
        "makes lamps brighter or darker as the sun shines",
    ),
    Function(
        ("screens payments for fraud patterns", "flags suspicious card transactions"),
        "catches crooks who try to steal money",
        "catches crooks who pay with stolen cards",
    ),
    Function(
        ("tracks pallets with radio tags", "locates load carriers by RFID"),
        "tells us where the goods on wooden platforms are standing",
        "tells where stacked cargo stands by wireless tags",
    ),
    Function(
        ("orders spare parts before the stock is exhausted", "replenishes the parts store automatically"),
        "buys replacement components when few are left",
        "buys new components when the shelf is getting empty",
    ),
    Function(
        ("sorts incoming support requests by urgency", "assigns a priority to every helpdesk message"),
        "judges which complaint must be handled first",
        "judges which call for help must be handled first",
    ),
    Function(
        ("checks badges and opens turnstiles", "grants entry to holders of valid badges"),
        "lets authorised persons through the doors",
        "lets only authorised persons through the doors",
    ),
    Function(
        ("inspects weld seams by camera", "finds faulty welds in images"),
        "looks at where metal was joined to spot defects",
        "looks at joined metal for bad seams",
    ),
    Function(
        ("analyses air quality and raises ventilation", "meters carbon dioxide and drives the fans"),
        "brings in fresh oxygen when it becomes stuffy",
        "lets in fresh air when it becomes stuffy",
    ),
    Function(
        ("settles travel expenses from photographed receipts", "reimburses business trips"),
        "pays workers back for their journeys",
        "pays workers back for hotels and train rides",
    ),
    Function(
        ("compacts and encrypts nightly backups", "copies databases to an offsite vault every night"),
        "saves our data in another place in case of loss",
        "saves a duplicate of all data elsewhere overnight",
    ),
    Function(
        ("estimates the energy demand of the next day", "forecasts tomorrow's electricity load"),
        "says ahead of time how much power will be needed",
        "anticipates how much power will be used tomorrow",
    ),
    Function(
        ("doses chlorine into water basins", "holds the disinfectant in pools at its target"),
        "keeps bathing liquid free of germs",
        "keeps bathing water free of germs",
    ),
    Function(
        ("answers routine phone calls with a synthetic voice", "speaks with callers and takes down their concerns"),
        "talks to people who ring us up without a human",
        "picks up the telephone and talks like a human",
    ),
    Function(
        ("blurs faces in recorded video", "anonymises persons in camera footage"),
        "hides who is visible on film for privacy",
        "makes people unrecognisable on film",
    ),
    Function(
        ("weighs trucks at the gate and prints weigh tickets", "runs the weighbridge"),
        "finds out how heavy a lorry is",
        "finds out how heavy a lorry is",
    ),
    Function(
        ("calculates sales commissions", "works out the monthly bonus of representatives"),
        "figures out how much sellers earn extra",
        "figures out what sellers earn extra for deals",
    ),
    Function(
        ("detects smoke and triggers the sprinklers", "recognises fire early and starts extinguishing"),
        "puts out flames before they spread",
        "puts out flames before they spread",
    ),
    Function(
        ("moderates comments and removes insults", "filters abusive posts from the forum"),
        "deletes rude remarks that users write",
        "deletes hateful remarks that users wrote",
    ),
    Function(
        ("suggests matching articles to shoppers", "recommends further products from the basket"),
        "proposes other things that a buyer may like",
        "proposes other goods a buyer may like",
    ),
    Function(
        ("charges electric vehicles when tariffs are low", "balances the load of charging points"),
        "fills car batteries at the cheapest hour",
        "fills the batteries of e-cars when power is cheap",
    ),
    Function(
        ("measures soil humidity and opens irrigation valves", "waters plants by ground moisture"),
        "gives greenery a drink once the earth is dry",
        "gives greenery a drink when the earth is dry",
    ),
    Function(
        ("sets prices according to demand and competitors", "adjusts tariffs to the market every hour"),
        "changes how much we charge when rivals do",
        "makes products dearer or cheaper like the competition",
    ),
    Function(
        ("schedules cleaning crews by actual room use", "dispatches janitors where rooms were occupied"),
        "sends someone to mop where it is dirty",
        "sends somebody to mop and dust where people have been",
    ),
    Function(
        ("verifies applicants' identity papers", "compares passports with a portrait taken live"),
        "makes sure a new client is who they claim to be",
        "makes sure by their ID that new clients are genuine",
    ),
    Function(
        ("separates waste by optical sorting", "picks plastics and paper out of refuse"),
        "divides rubbish so that it can be recycled",
        "divides rubbish into kinds for recycling",
    ),
    Function(
        ("lubricates chains at fixed intervals", "meters grease to moving joints"),
        "puts oil where machinery rubs",
        "puts oil where parts of a machine rub",
    ),
    Function(
        ("collects applications and ranks candidates", "sorts curricula vitae for recruiters"),
        "helps to choose whom to hire",
        "picks job seekers whom we should hire",
    ),
    Function(
        ("registers lost property and matches finder reports", "catalogues found belongings"),
        "gives people back the things they left behind",
        "gives people back the things they left behind",
    ),
    Function(
        ("drives autonomous transport carts through the aisles", "steers driverless tuggers between stations"),
        "moves goods on vehicles that nobody is sitting on",
        "hauls goods around on robot vehicles",
    ),
    Function(
        ("surveys roofs with drones", "photographs facades from the air"),
        "takes pictures of buildings from above with flying devices",
        "takes pictures of house tops from a flying device",
    ),
    Function(
        ("issues tickets and validates them at the barrier", "sells admission passes online"),
        "handles what guests must buy before they are let in",
        "sells entry passes and checks them at the gate",
    ),
    Function(
        ("distributes software updates to handheld scanners", "patches mobile devices over the air"),
        "brings new program releases onto portable gadgets",
        "brings new program releases onto portable gadgets",
    ),
    Function(
        ("logs the hours of subcontractors", "records time sheets of external crews"),
        "notes how long hired firms were busy",
        "notes how long hired outside workers were busy",
    ),
    Function(
        ("converts drawings into bills of material", "extracts part lists from engineering plans"),
        "derives which components are needed from a blueprint",
        "reads technical sketches and names the pieces needed",
    ),
    Function(
        ("sends appointment reminders and rebooks no-shows", "confirms visits by text message"),
        "makes people remember their scheduled slot",
        "makes clients remember the time slot they booked",
    ),
    Function(
        ("calibrates laboratory scales", "adjusts precision balances against reference weights"),
        "makes measuring instruments exact again",
        "makes weighing instruments exact again",
    ),
    Function(
        ("mixes paint by recipe", "blends pigments to a given shade"),
        "produces exactly the right colour",
        "stirs dyes together until the colour is right",
    ),
    Function(
        ("evaluates satisfaction surveys", "summarises feedback from questionnaires"),
        "tells us whether clients are happy",
        "digests the opinions that clients gave in polls",
    ),
    Function(
        ("simulates evacuations of buildings", "models how crowds leave in an emergency"),
        "shows how quickly everybody would get out",
        "rehearses how people would flee a house in danger",
    ),
    Function(
        ("records the temperature of shipments en route", "logs cold chain data in transit"),
        "proves that parcels never got too warm on their way",
        "proves that parcels stayed cool on their way",
    ),
    Function(
        ("manages loans of tools and devices", "lends out equipment and chases overdue items"),
        "remembers who borrowed which drill",
        "keeps track of gear that colleagues borrow",
    ),
    Function(
        ("detects counterfeit banknotes", "authenticates cash at the counter"),
        "recognises fake money",
        "recognises fake money",
    ),
    Function(
        ("drafts minutes of recorded meetings", "summarises conferences and lists decisions"),
        "writes down what was said when the team sat together",
        "notes what was said and agreed when a team met",
    ),
    Function(
        ("guides technicians through repairs with augmented glasses", "overlays repair steps on the fitter's view"),
        "displays mending hints in front of a mechanic's eyes",
        "shows a mechanic in a headset how to fix a machine",
    ),
    Function(
        ("disposes of personal records once retention ends", "erases stored customer data on schedule"),
        "removes private information that we may no longer keep",
        "wipes out details on people that are too old to keep",
    ),
    Function(
        ("steers window blinds against glare", "lowers sunshades by weather"),
        "provides shadow when the sun is shining in",
        "gives shade when the sun dazzles through the panes",
    ),
    Function(
        ("optimises how goods are stacked into containers", "computes loading plans for freight boxes"),
        "finds the best way to fit packages in",
        "finds the best way to fit cargo into boxes",
    ),
    Function(
        ("supervises lifts and reports stuck cabins", "watches elevator doors and brakes"),
        "notices if someone is trapped between two floors",
        "notices when someone is trapped in an elevator",
    ),
)
