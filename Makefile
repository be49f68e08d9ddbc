# Everything a user, a developer or CI runs. `make help` explains each target.

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=
# mount(8) looks for mount.fuse.hbmfs in /sbin only, so a system-wide install puts the link there.
MOUNTDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/sbin,$(PREFIX)/sbin)
# The one version of everything that is built: programs, libraries, packages, wheels, chart, image.
VERSION ?= $(shell tools/version.sh)
# RACE=0 tests without the race detector (it needs a C compiler), READERS=0 without the Python readers, SERVERS=0 without
# the real servers of remote sources, DEPLOY=0 without the checks of what is in deploy.
RACE    ?= 1
READERS ?= 1
SERVERS ?= 1
DEPLOY  ?= 1
CACHE   ?= .cache
BIN     ?= bin

# A release binary must not depend on the version of the C library of the machine that built it, nor building it on a C
# compiler. It links the C library's loader by name, without symbol versions, to find libcuda at run time. TAGS=nogpu
# leaves that out and links nothing at all (for Alpine and empty images); reading into a GPU is then refused.
TAGS   ?=
STATIC  = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false $(if $(TAGS),-tags $(TAGS))
LDFLAGS = -s -w -X github.com/hbmfs/hbmfs/internal/text/cli.version=$(VERSION)
LINT    = $(CACHE)/golangci-lint
PROSE   = $(CACHE)/prose
# The pages whose prose the linter reads. commands.md is made of --help.
PAGES   = README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md $(wildcard docs/*.md docs/*/*.md)
VENV    = $(CACHE)/venv
PEERS   = $(CACHE)/venv-peers
S3      = $(CACHE)/s3server
GCS     = $(CACHE)/gcsserver
OCI     = $(CACHE)/oci-clients
AZURITE = $(CACHE)/azurite/azurite-blob
SANITY  = $(CACHE)/csi-sanity
K8SCHECK = $(CACHE)/k8scheck
NFPM    = $(CACHE)/nfpm
IMAGER  = $(CACHE)/image
SBOM    = $(CACHE)/sbom
SHARE   = $(DESTDIR)$(PREFIX)/share

.DEFAULT_GOAL := help
.PHONY: help go build lib demo test testreport test-programs test-peers test-minio test-cluster cluster-images test-gpu lint docs bench bench-shards bench-samples soak-handover soak-volume soak-random bench-remote bench-clouds install uninstall packages image chart dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

# Whoever has no Go, or one that cannot read go.mod, is told so in a sentence.
go:
	@GO=$(GO) tools/need.sh go

build: go ## Build bin/hbmfs (TAGS=nogpu: wholly static, without the GPU paths) and bin/hbmfs-csi
	@mkdir -p $(BIN)
	$(STATIC) -ldflags '$(LDFLAGS)' -o $(BIN)/hbmfs ./cmd/hbmfs
	$(STATIC) -ldflags '$(LDFLAGS)' -o $(BIN)/hbmfs-csi ./cmd/hbmfs-csi

# The reader as a C library. Whoever loads it may ask for every symbol at once, which NVML's binding does not survive. Programs
# find it by its ABI (SONAME), which the header has. Neither a build ID nor what the linker adds for debuggers is in it: both would
# say where the C compiler lay.
ABI = $(shell sed -n 's/^\#define HBMFS_ABI \([0-9]*\).*/\1/p' cmd/libhbmfs/libhbmfs.h)

lib: go ## Build bin/libhbmfs.so and its header, the reader for C and Python (needs a C compiler)
	@tools/need.sh cc
	@mkdir -p $(BIN)
	CGO_ENABLED=1 $(GO) build -trimpath -buildvcs=false -buildmode=c-shared -tags nonvml,netgo,osusergo \
	  -ldflags '$(LDFLAGS) -buildid= "-extldflags=-s -Wl,-soname,libhbmfs.so.$(ABI)"' -o $(BIN)/libhbmfs.so ./cmd/libhbmfs
	ln -sf libhbmfs.so $(BIN)/libhbmfs.so.$(ABI)
	cp cmd/libhbmfs/libhbmfs.h $(BIN)/libhbmfs.h

MADE = $(MAKE) --no-print-directory build lib

demo: go ## Tokenize the Go source tree, mount it, verify every byte, show the rates, save checkpoints (1-2 minutes, once it is built)
	@tools/need.sh fuse cc python
	@$(MADE)
	@python=$$(tests/bench/demo/python.sh $(CACHE)/demo $(VENV)) && HBMFS_PYTHON=$$python $(GO) run ./tests/bench/demo --hbmfs $(BIN)/hbmfs

# Packages are tested four more at once than there are CPUs, since many tests wait. Each further way of
# building compiles all packages anew where the Go cache is empty. So go test vets what it builds, what reports is built as hbmfs is,
# and the suites share what is built here. The race detector would sleep a second before each of a thousand processes exits, and map its own memory
# anew for each allocation of 64 KiB or more.
AT_ONCE ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 4)

# All of .ci/run has 90 minutes in CI. What hangs is named before, since testreport ends each package in time, and each run.
LIMITS = --limits tests/limits.txt

# Tests that were linked are kept for the next run, some 2 GB, but by CI, which has no next run.
LINKED = $(if $(CI),,--linked=$(CACHE)/linked)

# The Python environment is downloaded while programs are built, two at a time. make -n would carry out a line that has MAKE in it.
BUILT = $(MAKE) --no-print-directory -j2 test-programs

test: go ## Run every check but lint: vet, gofmt, Go tests with the race detector, real servers
	@tools/need.sh fuse mkfs $(if $(filter 1,$(RACE)),cc) $(if $(filter 1,$(READERS)),python) $(if $(filter 1,$(SERVERS)),nginx strace python) $(if $(filter 1,$(DEPLOY)),rpm)
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); \
	  if [ -n "$$unformatted" ]; then echo "not gofmt'ed:"; echo "$$unformatted"; exit 1; fi
	@$(if $(filter 1,$(READERS)),tests/venv.sh $(VENV),true) & venv=$$!; $(BUILT); built=$$?; wait $$venv && exit $$built
	HBMFS_BINARY=$(abspath bin/hbmfs) HBMFS_PYTHON=$(if $(filter 1,$(READERS)),$(abspath $(VENV)/bin/python)) \
	  HBMFS_BINARY_RACE=$(if $(filter 1,$(RACE)),$(abspath $(CACHE)/race/hbmfs)) HBMFS_CSI_RACE=$(if $(filter 1,$(RACE)),$(abspath $(CACHE)/race/hbmfs-csi)) \
	  HBMFS_LIBRARY=$(if $(filter 1,$(READERS)),$(abspath bin/libhbmfs.so)) GORACE="$(or $(GORACE),atexit_sleep_ms=100 clear_shadow_mmap_threshold=16777216)" \
	  PYTHONPYCACHEPREFIX=$(abspath $(CACHE)/bytecode) HBMFS_VERSION=$(VERSION) HBMFS_S3SERVER=$(if $(filter 1,$(SERVERS)),$(abspath $(S3))) \
	  HBMFS_GCSSERVER=$(if $(filter 1,$(SERVERS)),$(abspath $(GCS))) HBMFS_OCI_CLIENTS=$(if $(filter 1,$(SERVERS)),$(abspath $(OCI))) \
	  HBMFS_AZURITE=$(if $(filter 1,$(SERVERS)),$(abspath $(AZURITE))) \
	  HBMFS_CSI=$(abspath bin/hbmfs-csi) HBMFS_CSI_SANITY=$(if $(filter 1,$(SERVERS)),$(abspath $(SANITY))) \
	  HBMFS_K8SCHECK=$(if $(filter 1,$(DEPLOY)),$(abspath $(K8SCHECK))) HBMFS_PACKAGES=$(if $(filter 1,$(DEPLOY)),$(abspath $(PACKAGES))) \
	  HBMFS_IMAGE=$(if $(filter 1,$(DEPLOY)),$(abspath bin/image.tar)) \
	  $(CACHE)/testreport --must-not-skip tests/must_not_skip.txt $(LIMITS) $(LINKED) --whole=45m $(if $(WRITE_LIMITS),--write-limits=tests/limits.txt) \
	  -vet=all $(if $(filter 1,$(RACE)),-race) -p $(AT_ONCE) ./...

testreport: go
	@mkdir -p $(CACHE)
	$(STATIC) -o $(CACHE)/testreport ./tests/blackbox/testreport

# The packages of a release are compressed as far as can be, which takes ten seconds for each.
test-programs: LEVEL = 1
test-programs: build testreport $(if $(filter 1,$(READERS)),lib) $(if $(filter 1,$(SERVERS)),$(S3) $(GCS) $(OCI) $(AZURITE) $(SANITY)) $(if $(filter 1,$(DEPLOY)),$(K8SCHECK) packages image)
	@mkdir -p $(CACHE)/race
	$(if $(filter 1,$(RACE)),$(GO) build -race -buildvcs=false -ldflags '-s -w' -o $(CACHE)/race/ ./cmd/hbmfs ./cmd/hbmfs-csi)

# A soak has a new seed, which the command shows; SEED=N repeats one.
SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))

# What has the packages that others train with lies in these packages of tests. Its names have Peers in them.
test-peers: build lib testreport ## Run the real readers and writers: Megatron, DeepSpeed, Transformers, MosaicML Streaming, LitData and others (4 minutes)
	@tools/need.sh fuse python ffmpeg $(if $(filter 1,$(RACE)),cc)
	@tests/venv.sh $(PEERS) $(VENV)
	HBMFS_BINARY=$(abspath bin/hbmfs) HBMFS_PEERS=$(abspath $(PEERS)/bin/python) HBMFS_LIBRARY=$(abspath bin/libhbmfs.so) \
	  $(CACHE)/testreport --must-not-skip tests/must_not_skip_peers.txt $(LIMITS) --whole=20m \
	  $(if $(filter 1,$(RACE)),-race) -p 2 -run Peers ./tests/suites/python/training ./tests/suites/python/serving ./tests/suites/loaders ./tests/suites/hub ./tests/suites/volume/programs

# The peers' wheels are a folder's, WHEELS: nothing is downloaded.
test-gpu: build lib ## On a machine with an NVIDIA GPU: test every path in HBM, measure it, and with torch other loaders (GPU_OUT, WHEELS; 3 to 15 minutes)
	@mkdir -p $(CACHE)
	CGO_ENABLED=0 $(GO) test -c -o $(CACHE)/cufile.test ./cufile
	tests/bench/gpu/run.sh bin/hbmfs $(CACHE)/cufile.test $(or $(GPU_OUT),$(CACHE)/gpu)
	@if python3 -c 'import torch' 2>/dev/null; then tests/bench/gpu/torch.sh bin/libhbmfs.so $(or $(GPU_OUT),$(CACHE)/gpu) bin/hbmfs && \
	  WHEELS=$(WHEELS) tests/bench/gpu/weights.sh bin/libhbmfs.so $(or $(GPU_OUT),$(CACHE)/gpu); \
	  else echo "python3 has no torch here: the Python package was not tested in HBM"; fi

lint: $(LINT) $(PROSE) ## Run golangci-lint, which also enforces who may import whom, and the rules of prose
	$(LINT) run ./...
	$(PROSE) $(PAGES)

# The linter is a module of its own, so that its dependencies never become ours.
$(LINT): tools/go.mod tools/go.sum | go
	@mkdir -p $(CACHE)
	@echo "building golangci-lint, once (minutes)"
	$(GO) -C tools build -buildvcs=false -o $(abspath $(LINT)) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(PROSE): $(wildcard tools/prose/*) | go
	@mkdir -p $(CACHE)
	CGO_ENABLED=0 $(GO) -C tools/prose test .
	CGO_ENABLED=0 $(GO) -C tools/prose build -buildvcs=false -o $(abspath $(PROSE)) .

docs: ## Build the site of docs/ in .cache/site; a link that leads nowhere fails
	@tools/venv.sh $(CACHE)/venv-docs tools/site/requirements.txt
	NO_MKDOCS_2_WARNING=1 $(CACHE)/venv-docs/bin/mkdocs build

# The S3 server of the tests is a module of its own for the same reason.
$(S3): $(wildcard tests/suites/origins/s3server/*) | go
	@mkdir -p $(CACHE)
	@echo "building an S3 server for the tests, once (a minute)"
	tools/retry.sh $(GO) -C tests/suites/origins/s3server mod download
	CGO_ENABLED=0 $(GO) -C tests/suites/origins/s3server build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $(S3)) .

$(GCS): $(wildcard tests/suites/origins/gcsserver/*) | go
	@mkdir -p $(CACHE)
	@echo "building a Google Cloud Storage for the tests, once (a minute)"
	tools/retry.sh $(GO) -C tests/suites/origins/gcsserver mod download
	CGO_ENABLED=0 $(GO) -C tests/suites/origins/gcsserver build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $(GCS)) .

$(OCI): tests/suites/oci/clients/go.mod tests/suites/oci/clients/go.sum | go
	@mkdir -p $@
	@echo "building clients of OCI registries for the tests, once (a minute)"
	tools/retry.sh $(GO) -C tests/suites/oci/clients mod download
	CGO_ENABLED=0 $(GO) -C tests/suites/oci/clients build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $@)/ tool
	@touch $@

# Azurite comes by npm, as package-lock.json pins it.
$(AZURITE): $(wildcard tests/suites/azure/azurite/*)
	@echo "installing an Azure Blob Storage for the tests, once (a minute or two)"
	tests/suites/azure/azurite/install.sh $(dir $(AZURITE))
	@touch $(AZURITE)

# So are what knows Kubernetes and Helm, and what makes packages.
$(K8SCHECK): $(wildcard tests/cluster/deploy/k8scheck/*) | go
	@mkdir -p $(CACHE)
	@echo "building the checks of the chart, once (a minute or two)"
	tools/retry.sh $(GO) -C tests/cluster/deploy/k8scheck mod download
	CGO_ENABLED=0 $(GO) -C tests/cluster/deploy/k8scheck build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $(K8SCHECK)) .

$(NFPM): tools/nfpm/go.mod tools/nfpm/go.sum | go
	@mkdir -p $(CACHE)
	@echo "building nfpm, once (half a minute)"
	tools/retry.sh $(GO) -C tools/nfpm mod download
	CGO_ENABLED=0 $(GO) -C tools/nfpm build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $(NFPM)) github.com/goreleaser/nfpm/v2/cmd/nfpm

# So are what makes images, and what lists what is in programs.
$(IMAGER) $(SBOM): $(CACHE)/%: $(wildcard tools/image/* tools/sbom/*) | go
	@mkdir -p $(CACHE)
	tools/retry.sh $(GO) -C tools/$* mod download
	CGO_ENABLED=0 $(GO) -C tools/$* build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $@) .

# So are the conformance tests of CSI drivers.
$(SANITY): $(wildcard tests/suites/csi/sanity/*) | go
	@mkdir -p $(CACHE)
	@echo "building csi-sanity for the tests, once"
	tools/retry.sh $(GO) -C tests/suites/csi/sanity mod download
	CGO_ENABLED=0 $(GO) -C tests/suites/csi/sanity build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $(SANITY)) .

# MinIO takes four minutes and two gigabytes to build, so it is not part of make test.
MINIO = $(CACHE)/minio

$(MINIO): tests/suites/origins/minio/go.mod tests/suites/origins/minio/go.sum | go
	@mkdir -p $(CACHE)
	@echo "building MinIO, once (minutes)"
	CGO_ENABLED=0 tools/retry.sh $(GO) -C tests/suites/origins/minio build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $(MINIO)) github.com/minio/minio

test-minio: build testreport $(MINIO) ## Test remote sources against MinIO, too (4 minutes the first time)
	@tools/need.sh fuse $(if $(filter 1,$(RACE)),cc)
	HBMFS_BINARY=$(abspath bin/hbmfs) HBMFS_MINIO=$(abspath $(MINIO)) \
	  $(CACHE)/testreport $(LIMITS) --whole=12m $(if $(filter 1,$(RACE)),-race) ./tests/suites/origins ./tests/suites/origins/stored

# A cluster of one node: Kubernetes' programs in one, Helm, and images of hbmfs in two versions and of what its pods run. None of it is
# part of make test: the programs take a quarter of an hour and 1 GB of the Go cache to build.
CLUSTER ?= $(CACHE)/cluster
K8S      = $(shell sed -n 's|^	k8s.io/kubernetes ||p' tests/cluster/kubernetes/go.mod)
K8SMINOR = $(word 2,$(subst ., ,$(K8S)))
K8SX     = -X k8s.io/component-base/version.git
HELM     = $(word 2,$(shell grep '^	helm.sh/helm/v4 ' tests/cluster/helm/go.mod))

$(CLUSTER)/kubernetes: $(wildcard tests/cluster/kubernetes/*) | go
	@mkdir -p $(CLUSTER)
	@echo "building Kubernetes $(K8S), once (5 minutes of two CPUs)"
	tools/retry.sh $(GO) -C tests/cluster/kubernetes mod download
	CGO_ENABLED=0 $(GO) -C tests/cluster/kubernetes build -trimpath -buildvcs=false \
	  -ldflags '-s -w $(K8SX)Version=$(K8S) $(K8SX)Major=1 $(K8SX)Minor=$(K8SMINOR)' -o $(abspath $@) .

$(CLUSTER)/helm: $(wildcard tests/cluster/helm/*) | go
	@mkdir -p $(CLUSTER)
	@echo "building Helm, once (2 minutes)"
	tools/retry.sh $(GO) -C tests/cluster/helm mod download
	CGO_ENABLED=0 $(GO) -C tests/cluster/helm build -trimpath -buildvcs=false -ldflags '-s -w -X helm.sh/helm/v4/internal/version.version=$(HELM)' \
	  -o $(abspath $@) helm.sh/helm/v4/cmd/helm

cluster-images: go $(IMAGER) $(S3)
	@mkdir -p $(CLUSTER)/pods
	for version in 0.2.0 0.2.0-next; do \
	  $(RELEASE) ARCH=$(ARCH) VERSION=v$$version tools/dist/image.sh ghcr.io/hbmfs/hbmfs:$$version $(CLUSTER)/hbmfs-$$version.tar || exit; done
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -tags nogpu -o $(CLUSTER)/pods/pod ./tests/cluster/pod
	SOURCE_DATE_EPOCH=0 $(IMAGER) --programs pod --name hbmfs.test/pod:1 --out $(CLUSTER)/pod.tar $(ARCH)=$(CLUSTER)/pods
	cp $(S3) $(CLUSTER)/pods/

# The upgrade begins with the chart and the programs of an earlier commit, the last one whose chart needed sidecars. Sources without git's
# history go without.
EARLIER ?= 5a6c20a
FORMER   = $(if $(shell git cat-file -e $(EARLIER)^{commit} 2>/dev/null && echo there),$(CLUSTER)/$(EARLIER))

$(CLUSTER)/$(EARLIER)/bin/image.tar: | go
	rm -rf $(CLUSTER)/$(EARLIER)
	mkdir -p $(CLUSTER)/$(EARLIER)
	git archive $(EARLIER) | tar -x -C $(CLUSTER)/$(EARLIER)
	$(MAKE) -C $(CLUSTER)/$(EARLIER) image ARCH=$(ARCH) VERSION=v0.1.0-earlier IMAGE=ghcr.io/hbmfs/hbmfs:0.1.0-earlier

test-cluster: $(CLUSTER)/kubernetes $(CLUSTER)/helm cluster-images $(if $(FORMER),$(FORMER)/bin/image.tar) ## Run the chart in a cluster of Kubernetes that this machine becomes, as root (20 minutes; 15 more the first time)
	@tools/need.sh fuse cluster
	HBMFS_CLUSTER=$(abspath $(CLUSTER)) HBMFS_CLUSTER_LOGS=$(abspath $(CLUSTER)/logs) HBMFS_CLUSTER_EARLIER=$(abspath $(FORMER)) HBMFS_SEED=$(SEED) $(GO) test -count=1 -v -timeout 2h $(CLUSTERFLAGS) ./tests/cluster

bench: build lib ## Measure the mount against direct reads and write that part of docs/benchmarks.md, then random batches of many shards (15 minutes)
	@tools/need.sh fuse python
	@mkdir -p $(CACHE)
	$(STATIC) -o $(CACHE)/bench ./tests/bench
	$(STATIC) -o $(CACHE)/loopback ./tests/bench/loopback
	$(CACHE)/bench --hbmfs bin/hbmfs --loopback $(CACHE)/loopback --docs docs $(BENCHFLAGS)
	@tests/venv.sh $(VENV)
	HBMFS_LIBRARY=$(abspath bin/libhbmfs.so) PYTHONPATH=python $(VENV)/bin/python -W ignore tests/bench/shards.py bin/hbmfs

bench-shards: build lib ## Measure random batches of many shards on the host beside np.memmap, a DataLoader, MosaicML Streaming and LitData (15 minutes)
	@tools/need.sh fuse python
	@tests/venv.sh $(PEERS) $(VENV)
	HBMFS_LIBRARY=$(abspath bin/libhbmfs.so) PYTHONPATH=python $(PEERS)/bin/python -W ignore tests/bench/shards.py bin/hbmfs $(BENCHFLAGS)

bench-samples: build lib ## Measure random batches of images and latents on the host beside MosaicML Streaming, LitData and WebDataset (5 minutes)
	@tools/need.sh fuse python
	@tests/venv.sh $(PEERS) $(VENV)
	HBMFS_LIBRARY=$(abspath bin/libhbmfs.so) PYTHONPATH=python $(PEERS)/bin/python -W ignore tests/bench/samples.py bin/hbmfs $(BENCHFLAGS)

soak-handover: build ## Replace daemons under readers, 200 times with 1,000 files, 20 times with 100,000, and kill them, and keepers, while they take over (12 minutes)
	@tools/need.sh fuse python
	@tests/venv.sh $(PEERS) $(VENV)
	HBMFS_BINARY=$(abspath bin/hbmfs) HBMFS_HANDOVERS=100 HBMFS_KILLS=500 HBMFS_HANDOVER_FILES=1000 HBMFS_HANDOVER_BUSY=2 HBMFS_HANDOVER_REST_US=0 \
	  HBMFS_PYTHON=$(abspath $(PEERS)/bin/python) HBMFS_PEERS=$(abspath $(PEERS)/bin/python) \
	  $(GO) test -count=1 -v -timeout 20m -run 'TestReadersSeeNoHandover|TestHandoversLeaveNothing|TestNextDaemonIsKilled|TestBackingFilesComeBack|TestKeepersAndDaemonAreKilled|TestStoppedSpareIsAllThatIsLeft|TestSlowReadBesideKills' ./tests/suites/handover
	HBMFS_BINARY=$(abspath bin/hbmfs) HBMFS_HANDOVERS=10 HBMFS_HANDOVER_FILES=100000 HBMFS_HANDOVER_BUSY=2 HBMFS_HANDOVER_REST_US=0 \
	  HBMFS_PYTHON=$(abspath $(PEERS)/bin/python) HBMFS_PEERS=$(abspath $(PEERS)/bin/python) \
	  $(GO) test -count=1 -v -timeout 20m -run TestReadersSeeNoHandover ./tests/suites/handover

soak-volume: build lib ## Have the disk of a checkpoint volume fail at every system call, and write and kill for half an hour (35 minutes; SOAK=30m)
	@tools/need.sh fuse strace python
	@tests/venv.sh $(VENV)
	HBMFS_BINARY=$(abspath bin/hbmfs) HBMFS_FAULTS=1 $(GO) test -count=1 -v -timeout 20m -run TestDiskFails ./tests/suites/volume/faults
	HBMFS_SEED=$(SEED) HBMFS_BINARY=$(abspath bin/hbmfs) HBMFS_SOAK=$(or $(SOAK),30m) $(GO) test -count=1 -v -timeout 2h -run TestSoak ./tests/suites/volume/faults
	HBMFS_BINARY=$(abspath bin/hbmfs) HBMFS_PYTHON=$(abspath $(VENV)/bin/python) HBMFS_LIBRARY=$(abspath bin/libhbmfs.so) HBMFS_TEST_LONG=1 \
	  PYTEST_ARGS="-k (at_random)or(are_ended)or(daemons_are_killed)" $(GO) test -count=1 -v -timeout 1h -run 'TestPythonCheckpoints|TestPythonVolumes' ./tests/suites/python/checkpoints ./tests/suites/python/volumes

soak-random: build lib ## Do random things with a new seed to a KV volume's books, a draft's files, streams of batches and a node of Kubernetes, and all rounds of shortened tests (30 minutes; SEED=N repeats)
	@tools/need.sh fuse nginx python
	@tests/venv.sh $(VENV)
	HBMFS_SEED=$(SEED) HBMFS_TEST_KV_RANDOM=10m $(GO) test -count=1 -v -timeout 20m -run TestRandomClients ./internal/volume/kv
	HBMFS_SEED=$(SEED) HBMFS_BINARY=$(abspath bin/hbmfs) HBMFS_CSI=$(abspath bin/hbmfs-csi) HBMFS_CSI_ROUNDS=2000 HBMFS_CSI_HANDOVERS=5 HBMFS_TEST_LONG=1 \
	  $(GO) test -count=1 -v -timeout 1h -run 'TestRandomOperations|TestRandomRounds|TestPodsSeeNoHandover' ./tests/suites/volume ./tests/suites/csi
	HBMFS_SEED=$(SEED) HBMFS_BINARY=$(abspath bin/hbmfs) HBMFS_PYTHON=$(abspath $(VENV)/bin/python) HBMFS_LIBRARY=$(abspath bin/libhbmfs.so) HBMFS_TEST_LONG=1 \
	  $(GO) test -count=1 -v -timeout 1h ./tests/suites/python/datasets ./tests/suites/python/dcp ./tests/suites/python/dcpwriter
	HBMFS_TEST_LONG=1 $(GO) test -count=1 -timeout 20m ./cufile ./internal/pack/tokenizer ./internal/pack ./internal/volume/drain
	HBMFS_TEST_LONG=1 HBMFS_BINARY=$(abspath bin/hbmfs) HBMFS_CSI=$(abspath bin/hbmfs-csi) $(GO) test -count=1 -v -timeout 20m \
	  -run 'TestPods$$|TestHostDies|TestOthersRemoveTheTree|TestOneUserCannotTakeAll' ./tests/suites/csi ./tests/suites/volume ./tests/suites/control

bench-remote: build $(S3) ## Measure first reads of remote sources beside rclone's and s3fs's, which must be there (RCLONE, 10 minutes)
	@tools/need.sh fuse
	$(STATIC) -o $(CACHE)/bench-remote ./tests/bench/remote
	$(CACHE)/bench-remote --hbmfs bin/hbmfs --s3server $(S3) --rclone $(or $(RCLONE),rclone) $(BENCHFLAGS) --rivals
	$(CACHE)/bench-remote --hbmfs bin/hbmfs --s3server $(S3) --rclone $(or $(RCLONE),rclone) $(BENCHFLAGS) --random

bench-clouds: build ## Measure first reads of s3://, gs://, az://, oci:// and hf:// beside huggingface_hub and gcsfs, which PYTHON must have (minutes)
	@tools/need.sh fuse
	$(STATIC) -o $(CACHE)/bench-remote ./tests/bench/remote
	$(CACHE)/bench-remote --hbmfs bin/hbmfs --python $(or $(PYTHON),python3) --rounds 3 $(BENCHFLAGS) --clouds

install: build ## Install the binary, the mount(8) link, the unit, man pages and completions (PREFIX, DESTDIR)
	install -D -m 755 $(BIN)/hbmfs $(DESTDIR)$(PREFIX)/bin/hbmfs
	install -d $(DESTDIR)$(MOUNTDIR) $(DESTDIR)$(PREFIX)/lib/systemd/system $(SHARE)/man/man1 $(SHARE)/bash-completion/completions \
	  $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	ln -sf $(PREFIX)/bin/hbmfs $(DESTDIR)$(MOUNTDIR)/mount.fuse.hbmfs
	sed 's|/usr/bin/|$(PREFIX)/bin/|' deploy/systemd/hbmfs@.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/hbmfs@.service
	$(BIN)/hbmfs man $(SHARE)/man/man1
	$(BIN)/hbmfs completion bash > $(SHARE)/bash-completion/completions/hbmfs
	$(BIN)/hbmfs completion zsh > $(SHARE)/zsh/site-functions/_hbmfs
	if [ $(PREFIX) = /usr ]; then \
	  mkdir -p $(SHARE)/zsh/vendor-completions && ln -sf ../site-functions/_hbmfs $(SHARE)/zsh/vendor-completions/_hbmfs; \
	fi # where Debian's zsh looks
	$(BIN)/hbmfs completion fish > $(SHARE)/fish/vendor_completions.d/hbmfs.fish

uninstall: ## Remove what make install installed (the same PREFIX and DESTDIR)
	rm -f $(DESTDIR)$(PREFIX)/bin/hbmfs $(DESTDIR)$(MOUNTDIR)/mount.fuse.hbmfs $(DESTDIR)$(PREFIX)/lib/systemd/system/hbmfs@.service \
	  $(SHARE)/man/man1/hbmfs.1 $(SHARE)/man/man1/hbmfs-*.1 $(SHARE)/bash-completion/completions/hbmfs \
	  $(SHARE)/zsh/site-functions/_hbmfs $(SHARE)/zsh/vendor-completions/_hbmfs $(SHARE)/fish/vendor_completions.d/hbmfs.fish

# What tools/dist makes of what is built. The same commit gives the same bits. ARCH is one that Go
# knows.
ARCH     ?= $(shell $(GO) env GOARCH)
PACKAGES ?= bin/packages
DIST     ?= dist
EPOCH    ?= $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),0)
RELEASE   = GO=$(GO) MAKE=$(MAKE) LEVEL=$(LEVEL) VERSION=$(VERSION) ABI=$(ABI) SOURCE_DATE_EPOCH=$(EPOCH) WORK=$(abspath $(CACHE)/dist) \
            NFPM=$(abspath $(NFPM)) IMAGER=$(abspath $(IMAGER)) SBOM=$(abspath $(SBOM))

packages: build lib $(NFPM) ## Make .deb and .rpm of what is built here in bin/packages
	rm -rf $(PACKAGES)
	$(RELEASE) tools/dist/packages.sh $(ARCH) $(BIN) $(PACKAGES)

# Its name has no + of a version.
IMAGE ?= ghcr.io/hbmfs/hbmfs:$(subst +,-,$(VERSION:v%=%))

image: go $(IMAGER) ## Make bin/image.tar, the image of the CSI driver, without a container engine (IMAGE, ARCH="amd64 arm64", PUSH=1)
	@mkdir -p bin
	$(RELEASE) ARCH="$(ARCH)" tools/dist/image.sh $(IMAGE) bin/image.tar $(if $(PUSH),--push)

dist: go $(NFPM) $(IMAGER) $(SBOM) ## Make all files of a release in dist, for amd64 and arm64 (VERSION=v0.2.0, DIST)
	$(RELEASE) tools/dist/all.sh $(DIST)

chart: $(K8SCHECK) ## Lint the Helm chart and write the plain manifests of deploy/kubernetes from it
	$(K8SCHECK) chart deploy/helm/hbmfs deploy/helm/hbmfs/ci/*.yaml
	$(K8SCHECK) render deploy/helm/hbmfs > $(CACHE)/hbmfs.yaml
	mv $(CACHE)/hbmfs.yaml deploy/kubernetes/hbmfs.yaml

clean: ## Remove what was built and downloaded here
	rm -rf bin dist $(CACHE)
