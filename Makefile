# Hapax: build, run, test. `make help` lists the targets.
#
# Sources are found, not listed: src/<room>/*.c makes the room, tests/unit/*_test.c makes one test program each.
# SAN=address or SAN=thread builds everything once more, instrumented, into its own directory.

SHELL   := /bin/bash
CC      := gcc
CLANG   := clang
SAN     ?=
Q       ?= @
BUILD   ?= build$(if $(SAN),-$(SAN))
GEN     ?= $(BUILD)/gen
PREFIX  ?= /usr/local
VERSION := $(shell cat VERSION)

WARN    := -Wall -Wextra -Wconversion -Wshadow -Werror -Wstrict-prototypes -Wmissing-prototypes -Wvla
BRANCH  := $(if $(filter x86_64,$(shell uname -m)),-fcf-protection=full)$(if $(filter aarch64,$(shell uname -m)),-mbranch-protection=standard)
HARDEN  := -fPIE -fstack-protector-strong -fstack-clash-protection $(BRANCH)
# What nobody has set is zero, in the rooms that read other people's bytes. The hot path of core and broker fills what it makes, and would
# pay 3 % of a send for error buffers that it does not look at. A sanitizer's build shows what is there.
ZEROED   = $(if $(SAN)$(filter core broker,$(*D)),,-ftrivial-auto-var-init=zero)
CPPFLAGS := -Isrc -Iinclude -D_GNU_SOURCE -DHAPAX_VERSION='"$(VERSION)"'
OPT     := -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3
# gcc clears a struct of a hundred bytes with `rep stos`, which takes longer to start than sixteen bytes at a time take to the end.
CLEARS  := $(if $(filter x86_64,$(shell uname -m)),-mmemset-strategy=libcall:-1:noalign)
LTO     := -flto=auto -ffat-lto-objects
LDHARD  := -pie -Wl,-z,relro,-z,now,-z,noexecstack
ifneq ($(SAN),)
LTO     :=
endif
ifeq ($(SAN),address)
OPT     := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
else ifeq ($(SAN),thread)
OPT     := -O1 -fno-omit-frame-pointer -fsanitize=thread
endif
CFLAGS  := -std=c17 -g $(OPT) $(CLEARS) $(WARN) $(HARDEN) -MMD -MP
LDFLAGS := $(OPT) $(LDHARD)

ROOMS      := base core config journal net broker client pg relay daemon cli
src         = $(wildcard src/$(1)/*.c)
objs        = $(patsubst src/%.c,$(BUILD)/obj/%.o,$(1))
MAINS      := src/daemon/hapaxd.c src/cli/hapax.c
SERVER_OBJ := $(call objs,$(filter-out $(MAINS),$(foreach r,base core config journal net pg relay broker daemon,$(call src,$(r)))))
SERVER_LIBS := -Wl,--as-needed -luv -lyaml -lcurl -lssl -lcrypto -lpthread
CLI_OBJ    := $(call objs,$(filter-out $(MAINS),$(foreach r,base core config journal pg relay cli,$(call src,$(r))))) $(GEN)/gate_sql.o
GATE_SQL   := $(sort $(wildcard sql/postgres/migrations/*.sql)) sql/postgres/hapax_gate.sql sql/postgres/uninstall.sql
pics        = $(patsubst src/%.c,$(BUILD)/pic/%.o,$(1))
DRIVERS    := src/client/gate_pq.c src/client/gate_sqlite.c
CLIENT_PIC := $(call pics,$(filter-out $(DRIVERS),$(call src,client)) $(call src,base))
GATE_PIC   := $(call pics,src/client/error.c src/client/memory.c $(call src,base))
GATE_LIBS  := $(BUILD)/libhapax_pq.a $(BUILD)/libhapax_sqlite.a
PQ_FLAGS   := $(shell pkg-config --cflags libpq 2>/dev/null || echo -I/usr/include/postgresql)
UNIT_SRC   := $(wildcard tests/unit/*_test.c)
UNIT_BIN   := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(UNIT_SRC))
TOOL_DIRS  := bench crash gate
TOOL_SRC   := $(wildcard $(TOOL_DIRS:%=tests/%/*.c))
TOOL_BIN   := $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(TOOL_SRC)))

.DEFAULT_GOAL := all
.SECONDARY:
.PHONY: all deps run demo test bench sim crash fuzz slow mutants timing lint install clean help test-tools

all: $(BUILD)/hapaxd $(BUILD)/hapax $(foreach lib,hapax hapax_pq hapax_sqlite,$(BUILD)/lib$(lib).a $(BUILD)/lib$(lib).so)

help:
	@sed -n 's/^#: \{0,1\}//p' Makefile

#: make            build hapaxd, hapax, libhapax.a, libhapax.so into build/
#: make run        install what is missing, build, start the broker
#:                 (HAPAX_LISTEN=127.0.0.1:PORT, HAPAX_DATA=DIR)
#: make demo       a bad day at a container terminal, without Hapax and with it
#: make install    into PREFIX=/usr/local: programs, libraries, man pages, unit
#: make deps       install what everything below needs, from Debian packages
#:
#: make test       install what is missing, build, run every test (short forms)
#: make lint       formatting, include walls, banned calls, clang-tidy
#: make sim        the simulator (SEEDS=1-1000)
#: make crash      kill -9 under load (KILLS=1000 CRASHES=2000)
#: make fuzz       every fuzz target (SECONDS=600)
#: make mutants    planted bugs: every checker must catch its own
#: make slow       slow clients by the thousand beside a good one
#: make timing     wrong tokens take the same time, over a million looks
#: make bench      beside Redis, NATS, beanstalkd and PostgreSQL
#: make clean      remove what was built

deps:
	@tools/deps

# ---- building

$(BUILD)/obj/%.o: src/%.c Makefile VERSION
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(ZEROED) $(LTO) -c $< -o $@

$(BUILD)/pic/%.o: src/%.c Makefile VERSION
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(ZEROED) -fPIC -fvisibility=hidden -c $< -o $@

# The dashboard's pages, too (broker/web_files.c). Link-time optimization would lose what the assembler took in.
$(BUILD)/obj/broker/web_files.o: LTO :=
$(BUILD)/obj/broker/web_files.o: $(wildcard src/web/* docs/runbooks/*)

# The gate's SQL goes into the binary: `hapax gate install` needs no file beside it.
$(GEN)/gate_sql.c: tools/embed $(GATE_SQL)
	@mkdir -p $(@D)
	$(Q)tools/embed $(GATE_SQL) > $@
$(GEN)/gate_sql.o: $(GEN)/gate_sql.c Makefile VERSION
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

$(BUILD)/hapaxd: $(BUILD)/obj/daemon/hapaxd.o $(SERVER_OBJ) $(BUILD)/libhapax.a
	$(Q)$(CC) $(CFLAGS) $(LTO) $(LDFLAGS) $^ -o $@ $(SERVER_LIBS)

# The second name is for a test: another GEN and GATE_SQL make the command of a version to come.
$(BUILD)/hapax $(GEN)/hapax: $(BUILD)/obj/cli/hapax.o $(CLI_OBJ) $(BUILD)/libhapax.a
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ -lyaml -lssl -lcrypto -lpthread

# One relocatable object with everything but hx_* made local: a program that links the archive sees no other name.
define archive
$(Q)ld -r $^ -o $(@:.a=.o)
$(Q)objcopy --localize-hidden $(@:.a=.o)
$(Q)rm -f $@ && ar rcs $@ $(@:.a=.o)
endef
define shared
$(Q)$(CC) $(OPT) -shared -Wl,-soname,$(@F).0 -Wl,-z,relro,-z,now $^ -o $@ $(1)
$(Q)ln -sf $(@F) $@.0
endef

$(BUILD)/libhapax.a: $(CLIENT_PIC)
	$(archive)
$(BUILD)/libhapax.so: $(CLIENT_PIC)
	$(call shared,-lssl -lcrypto -lpthread)

# The gate's drivers, a library each: nobody links a database he does not use.
$(BUILD)/pic/client/gate_pq.o: CPPFLAGS += $(PQ_FLAGS)
$(GATE_LIBS): $(BUILD)/libhapax_%.a: $(BUILD)/pic/client/gate_%.o $(GATE_PIC)
	$(archive)
$(BUILD)/libhapax_pq.so: $(BUILD)/pic/client/gate_pq.o $(GATE_PIC)
	$(call shared,-lpq)
$(BUILD)/libhapax_sqlite.so: $(BUILD)/pic/client/gate_sqlite.o $(GATE_PIC)
	$(call shared,-lsqlite3)

# ---- running

# A first build takes a minute or two: whoever waits is told what for.
QUIETLY = $(MAKE) --no-print-directory -s $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))
define built
@$(MAKE) --no-print-directory -q all || echo "building into $(BUILD)/ (a first build takes a minute or two)" >&2
@$(QUIETLY) all
endef

run:
	@tools/deps --build
	$(built)
	@HAPAXD=$(BUILD)/hapaxd tools/run

# Two hours of a feed that repeats itself, in ten seconds each.
demo:
	@tools/deps --demo
	$(built)
	@examples/terminal-slots/demo.py --svg $(BUILD)/terminal-slots.svg

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/hapax $(DESTDIR)$(PREFIX)/share/man/man1
	install $(BUILD)/hapaxd $(BUILD)/hapax $(DESTDIR)$(PREFIX)/bin/
	for lib in libhapax libhapax_pq libhapax_sqlite; do \
		install -m 644 $(BUILD)/$$lib.a $(DESTDIR)$(PREFIX)/lib/ && \
		install $(BUILD)/$$lib.so $(DESTDIR)$(PREFIX)/lib/$$lib.so.$(VERSION) && \
		ln -sf $$lib.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/$$lib.so.0 && \
		ln -sf $$lib.so.0 $(DESTDIR)$(PREFIX)/lib/$$lib.so || exit 1; done
	install -m 644 include/hapax/*.h $(DESTDIR)$(PREFIX)/include/hapax/
	install -m 644 docs/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	for pc in hapax hapax-pq hapax-sqlite; do \
		sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' tools/$$pc.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/$$pc.pc; done
	install -d $(DESTDIR)$(PREFIX)/share/hapax/sql && cp -R sql/. $(DESTDIR)$(PREFIX)/share/hapax/sql/
	install -m 644 hapax.example.yaml $(DESTDIR)$(PREFIX)/share/hapax/
	install -d $(foreach d,systemd/system sysusers.d tmpfiles.d,$(DESTDIR)$(PREFIX)/lib/$(d))
	sed -e 's|@PREFIX@|$(PREFIX)|' packaging/hapaxd.service.in > $(DESTDIR)$(PREFIX)/lib/systemd/system/hapaxd.service
	install -m 644 packaging/hapax.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/hapax.conf
	install -m 644 packaging/hapax.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/hapax.conf

# ---- testing

# Unit tests see every room's objects, the benchmark's clients the command's load generator; the archive keeps link lines short.
$(BUILD)/librooms.a: $(SERVER_OBJ) $(call objs,$(wildcard src/cli/load*.c))
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/tests/%_test: tests/unit/%_test.c $(BUILD)/librooms.a $(BUILD)/libhapax.a Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) -Itests $(CFLAGS) $(LDFLAGS) -fno-lto $< -o $@ $(DRIVER_LIBS) $(BUILD)/libhapax.a $(BUILD)/librooms.a -lcmocka $(SERVER_LIBS)

# Programs the tests drive (load generators, checkers, fault injectors) live beside the suite that needs them.
define tool
$(BUILD)/tests/%: tests/$(1)/%.c $(BUILD)/librooms.a $(BUILD)/libhapax.a Makefile
	@mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CPPFLAGS) -Itests $$(CFLAGS) $$(LDFLAGS) -fno-lto $$< -o $$@ $$(DRIVER_LIBS) $(BUILD)/libhapax.a $(BUILD)/librooms.a $(SERVER_LIBS) -lm
endef
$(foreach dir,$(TOOL_DIRS),$(eval $(call tool,$(dir))))

# Those that bring their databases along.
comma      := ,
GATE_TESTS := $(patsubst %,$(BUILD)/tests/%,gate_test gate_races_test gate_consumer gate_bench)
$(GATE_TESTS): DRIVER_LIBS = $(GATE_LIBS) -lpq -lsqlite3
$(GATE_TESTS): CPPFLAGS += $(PQ_FLAGS)
$(GATE_TESTS): $(GATE_LIBS)
$(BUILD)/tests/gate_consumer: LDFLAGS += $(patsubst %,-Wl$(comma)--wrap=%,PQexec PQexecParams PQpipelineSync sqlite3_step sendmsg recv)

# Every example compiles; tests/gate/examples_test.py runs those that have to do with the gate.
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c))
$(BUILD)/examples/%: examples/%.c $(BUILD)/libhapax.a $(GATE_LIBS) Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) -Iinclude -D_GNU_SOURCE $(PQ_FLAGS) $(CFLAGS) $(LDFLAGS) $< -o $@ $(GATE_LIBS) $(BUILD)/libhapax.a -lpq -lsqlite3 -lssl -lcrypto -lpthread

SIM_OBJ := $(patsubst tests/sim/%.c,$(BUILD)/obj/sim/%.o,$(wildcard tests/sim/*.c))
$(BUILD)/obj/sim/%.o: tests/sim/%.c Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) -Itests $(CFLAGS) -c $< -o $@
$(BUILD)/tests/sim: $(SIM_OBJ) $(BUILD)/librooms.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -fno-lto $^ -o $@ $(SERVER_LIBS) -lm

test-tools: all $(UNIT_BIN) $(TOOL_BIN) $(EXAMPLES) $(if $(SIM_OBJ),$(BUILD)/tests/sim)

test:
	@tools/deps --test
	@tests/run

sim: ; @tests/sim/run $(or $(SEEDS),1-10000)
crash:
	@tests/crash/run $(or $(KILLS),1000)
	@PUSH_KILLS=$(or $(PUSH_KILLS),400) PUSH_LOAD=$(or $(PUSH_LOAD),14) tests/crash/push_test.py
	@set -e; for suite in tests/gate/*_test.py; do CRASHES=$(or $(CRASHES),2000) $$suite crash killed failover dies die_under; done
slow: ; @tools/deps --test && $(MAKE) -s all && tests/slow/run
fuzz: ; @tests/fuzz/run $(or $(SECONDS),600)
mutants: ; @tests/mutants/run
timing: $(BUILD)/tests/token_timing_test; @HAPAX_TIMING_SAMPLES=1000000 $<
bench: ; @tools/deps --bench && tests/bench/run && tests/bench/steady.py && tests/bench/watched.py && tests/bench/proxied.py && tests/bench/push.py
lint: ; @tools/deps --test && tests/lint/run

clean:
	rm -rf build build-*

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
