# Syrinx: the commands of a working day. `make` alone lists them.

CARGO      ?= cargo
PREFIX     ?= /usr/local
SYSCONFDIR ?= /etc
DESTDIR    ?=

BINDIR     := $(PREFIX)/bin
UNITDIR    := $(PREFIX)/lib/systemd/system
SYSCTLDIR  := $(PREFIX)/lib/sysctl.d
CONFDIR    := $(SYSCONFDIR)/syrinx
SHAREDIR   := $(PREFIX)/share/syrinx
DOCDIR     := $(PREFIX)/share/doc/syrinx

DAEMONS    := syrinx-relay syrinx-transceiver
# Crates whose core must build on its own, without any driver crate.
PURE       := syrinx-shared syrinx-relay syrinx-transceiver
# Where `install` takes the daemons from.
BUILT      ?= target/release
BROWSER    := bench/tests/browser
EXAMPLES   := transceiver/examples
# Where the packages of the Python examples are installed, and the tests' own.
PYTHON     := target/python
comma      := ,
# What `bench` sets the relay against; kernel DNAT needs namespaces, and so root.
RIVALS     := syrinx,syrinx-mmsg,go,go-raw,coturn,direct$(if $(filter 0,$(shell id -u)),$(comma)dnat)

# What bench/tests/clients/prepare makes ready, and the tests that need it all.
CLIENTS    := aiortc chromium firefox gstreamer node pion
EVERY_CLIENT := syrinx-bench/every-client

.DEFAULT_GOAL := help
.PHONY: help run demo-agent python test test-clients bench bench-quick bench-peers bench-build \
        peers check ci fmt format lint docs purity units prerequisites browser install uninstall clean

help: ## List these commands
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build, start relay and transceiver on localhost, print the page's address; ^C stops
	$(CARGO) build --release --bin syrinx-relay --bin syrinx-transceiver
	systemd/run-local

demo-agent: prerequisites python ## The same with a small voice agent that hears, answers and is interrupted
	$(CARGO) build --release --bin syrinx-relay --bin syrinx-transceiver
	$(EXAMPLES)/demo-agent target/release $(PYTHON)/bin/python

# Cargo builds the daemons, which the tests start, before it runs the first test.
test: prerequisites browser python ## Run every test, the real browsers' among them
	$(PYTHON)/bin/python -m unittest discover --start-directory bench/tests/backends
	$(CARGO) test --workspace

# The quick clients run in `test` too; these are all, calls of several minutes among them.
test-clients: prerequisites ## Call with browsers, SDK and libraries as people have them
	for client in $(CLIENTS); do bench/tests/clients/prepare $$client || exit; done
	$(CARGO) build --workspace --bins
	$(CARGO) test --workspace --features $(EVERY_CLIENT) --test clients

# Figures go to target/bench/summary.json; what was not measured this time is not in it.
BENCH      := target/release/syrinx-bench
RESULTS    := target/bench
PEERS      := syrinx,pion,janus

# What is measured, and at whose side, in the order played; each has a file and a part of the page.
SUITE      := relay calls setup capacity recovery roam storm soak barge-in barge-in-realtime links lte

bench: peers bench-build ## Measure everything, beside all rivals, in ten minutes; see target/bench
	rm -f $(RESULTS)/summary.json
	$(BENCH) relay --targets $(RIVALS) --rounds 5 --window-ms 300 --flow-memory 1000000 \
	    --json $(RESULTS)/relay.json --plot $(RESULTS)/relay.svg --summary $(RESULTS)/summary.json
	$(BENCH) calls --targets $(PEERS) --rounds 3 --calls 200 --rate 100 --settle-s 1 --window-s 6 \
	    --json $(RESULTS)/calls.json --summary $(RESULTS)/summary.json
	$(BENCH) setup --targets $(PEERS) --rounds 3 --calls 200 \
	    --json $(RESULTS)/setup.json --summary $(RESULTS)/summary.json
	$(BENCH) capacity --of starts --json $(RESULTS)/capacity.json --summary $(RESULTS)/summary.json
	$(BENCH) recovery --rounds 3 --observe-s 6 \
	    --json $(RESULTS)/recovery.json --summary $(RESULTS)/summary.json
	$(BENCH) roam --rounds 3 --observe-s 8 --json $(RESULTS)/roam.json
	$(BENCH) storm --rounds 3 --settle-s 2 --observe-s 5 --json $(RESULTS)/storm.json
	$(BENCH) soak --calls 24000 --rate 300 --hold-s 1 --json $(RESULTS)/soak.json
	$(BENCH) barge-in --json $(RESULTS)/barge-in.json
	$(BENCH) barge-in --dialect realtime --json $(RESULTS)/barge-in-realtime.json
	$(BENCH) calls --targets syrinx,media-v1,realtime --calls 40 --window-s 6 \
	    --json $(RESULTS)/links.json
	$(BENCH) calls --calls 100 --impair lte --json $(RESULTS)/lte.json
	$(BENCH) report --html $(RESULTS)/report.html $(SUITE:%=$(RESULTS)/%.json)

# The main figures only, in under a minute after the build; coalescing as long as it may be, since
# the paced figure allows 100 us of added delay.
bench-quick: peers bench-build ## The main figures in under a minute after the build: target/bench/summary.json
	rm -f $(RESULTS)/summary.json
	$(BENCH) relay --targets syrinx,go --rounds 3 --window-ms 300 \
	    --scenarios to-transceiver-saturated,to-transceiver-paced,to-clients-saturated,duplex-saturated \
	    --relay-set workers.coalesce_us=100 --flow-memory 200000 \
	    --json $(RESULTS)/relay-quick.json --summary $(RESULTS)/summary.json
	$(BENCH) calls --targets $(PEERS) --calls 100 --rate 100 --settle-s 0.5 --window-s 2 \
	    --json $(RESULTS)/calls-quick.json --summary $(RESULTS)/summary.json
	$(BENCH) setup --calls 100 --hold-s 0.5 \
	    --json $(RESULTS)/setup-quick.json --summary $(RESULTS)/summary.json
	$(BENCH) recovery --calls 50 --rate 100 --settle-s 1.5 --observe-s 5 \
	    --json $(RESULTS)/recovery-quick.json --summary $(RESULTS)/summary.json

bench-peers: peers bench-build ## Call Pion and Janus as ours, side by side: target/bench/peers.html
	$(BENCH) calls --targets $(PEERS) --rounds 3 --json $(RESULTS)/peers-calls.json
	$(BENCH) setup --targets $(PEERS) --rounds 3 --calls 300 --json $(RESULTS)/peers-setup.json
	$(BENCH) report --html $(RESULTS)/peers.html --title "Beside Pion and Janus" \
	    $(RESULTS)/peers-calls.json $(RESULTS)/peers-setup.json

bench-build:
	$(CARGO) build --release --bin syrinx-relay --bin syrinx-transceiver --bin syrinx-bench

# The Go relay and the echo on Pion are built; coturn, Janus and the rest come from Debian.
peers:
	bench/peers/build

check: format lint docs purity units ## Formatting, lints, links of the docs, purity, systemd units

# The optimised build goes its own ways through the compiler, and is what `make run` starts with.
ci: check test bench-build ## What the build service runs: check, test, the optimised build

fmt: ## Format the sources
	$(CARGO) fmt --all

format:
	$(CARGO) fmt --all --check

lint: ## Run clippy over everything, warnings are errors
	$(CARGO) clippy --workspace --all-targets --features $(EVERY_CLIENT) -- -D warnings

# Links to private items are welcome: who reads these pages has the source.
docs:
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
	    $(CARGO) doc --workspace --no-deps --lib --document-private-items

# The cores compile without sockets, ring, runtime or HTTP; shared/tests/layers.rs names the crates.
purity:
	$(CARGO) check --lib --no-default-features $(PURE:%=--package %)

# Installs into a scratch root, so that the verification sees what `make install` would leave.
# Stand-ins for the daemons save the build: systemd looks only whether a command is there.
units:
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && mkdir "$$scratch/built" && \
	for daemon in $(DAEMONS); do cp /bin/true "$$scratch/built/$$daemon"; done && \
	$(MAKE) --no-print-directory install BUILT="$$scratch/built" \
	    DESTDIR="$$scratch/root" PREFIX=/usr SYSCONFDIR=/etc >/dev/null && \
	systemd/verify "$$scratch/root"

prerequisites:
	@.ci/prerequisites

# playwright-core drives the installed Chromium; it brings no browser of its own.
browser: $(BROWSER)/node_modules/.package-lock.json

$(BROWSER)/node_modules/.package-lock.json: $(BROWSER)/package-lock.json
	cd $(BROWSER) && npm ci --no-audit --no-fund

# The examples' packages, and the recogniser with its model, in a place of their own.
python: $(PYTHON)/.installed

$(PYTHON)/.installed: $(EXAMPLES)/requirements.txt
	python3 -m venv $(PYTHON)
	$(PYTHON)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

install: ## Install binaries, units, sysctl profile and examples; starts nothing (DESTDIR, PREFIX)
	@test -x $(BUILT)/syrinx-relay -a -x $(BUILT)/syrinx-transceiver || \
	    { echo "nothing to install in $(BUILT): run 'cargo build --release' first" >&2; exit 1; }
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(UNITDIR) $(SYSCTLDIR) $(CONFDIR) $(SHAREDIR) $(DOCDIR))
	install -m 0755 $(DAEMONS:%=$(BUILT)/%) $(DESTDIR)$(BINDIR)
	set -e; for unit in $(DAEMONS); do \
	    sed -e 's|/usr/local/bin|$(BINDIR)|' -e 's|/etc/syrinx|$(CONFDIR)|' \
	        -e 's|/usr/local/share/doc/syrinx|$(DOCDIR)|' systemd/$$unit.service \
	        > $(DESTDIR)$(UNITDIR)/$$unit.service; done
	install -m 0644 systemd/sysctl.d/90-syrinx.conf $(DESTDIR)$(SYSCTLDIR)
	install -m 0644 systemd/relay.toml systemd/transceiver.toml $(DESTDIR)$(SHAREDIR)
	set -e; for daemon in relay transceiver; do \
	    test -e $(DESTDIR)$(CONFDIR)/$$daemon.toml || \
	        install -m 0644 systemd/$$daemon.toml $(DESTDIR)$(CONFDIR); done
	install -m 0644 shared/manual/*.md $(DESTDIR)$(DOCDIR)
	@echo "installed; next: 'First start' in $(DOCDIR)/operations.md"

uninstall: ## Remove what install put there; configuration and keys stay
	rm -f $(DAEMONS:%=$(DESTDIR)$(BINDIR)/%) $(DAEMONS:%=$(DESTDIR)$(UNITDIR)/%.service)
	rm -f $(DESTDIR)$(SYSCTLDIR)/90-syrinx.conf
	rm -rf $(DESTDIR)$(SHAREDIR) $(DESTDIR)$(DOCDIR)

clean: ## Remove build products
	$(CARGO) clean
	rm -rf $(BROWSER)/node_modules bench/tests/clients/node_modules
