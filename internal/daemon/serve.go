package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/mounts/ready"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/internal/text/address"
)

// said is a source as it was given, but for an address what the mount calls it: without secrets, and pinned.
func said(source string, opt fs.Options) string {
	if address.IsRemote(source) {
		return opt.Source
	}
	return source
}

// serve mounts, reports that the mount is ready, and stays until it is unmounted.
func (m *Mount) serve(ctx context.Context, life *handover.Life, report *ready.Report) error {
	out, closeLog, err := m.openLog()
	if err != nil {
		return err
	}
	defer closeLog()
	opt := m.Options
	opt.Life, opt.Log, opt.LogFile, opt.Layout.Select = life, m.newLog(out), m.logName(), m.selected.List
	began := time.Now()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)

	if err := m.awaitTurn(ctx, life); err != nil {
		return err
	}
	opt.Trace = openTracer(opt.Version, opt.Log)
	defer closeTracer(opt.Trace)
	ctx, span := opt.Trace.Start(ctx, "mount") // of a spare, with the wait for its turn
	making, why, made := m.making(ctx, life, report)
	defer made()
	from, err := m.open(making, &opt, report.Note)
	if err != nil {
		span.End("source")
		return SourceError{why(err)}
	}
	defer from.close()
	mount, err := m.begin(making, from, opt)
	if err == nil || mount == nil && !life.Adopts() { // otherwise the mount is there, and a look at it waits for this daemon
		defer m.places.removePoint()
	}
	if err != nil {
		span.End("mount")
		return why(err)
	}
	if life.Spare() {
		began = time.Now() // it has waited for its turn
	}
	keepIdleProcessor()
	served := beside(func() { mount.Serve(ctx) })
	<-mount.Ready()
	defer from.runBeside(ctx)()
	if !m.Foreground {
		if err := stayBehind(out); err != nil {
			opt.Log.Warn("the daemon still depends on the place where it was started", "error", err)
		}
	}
	defer mount.Hold(ctx, &m.places, &m.selected, from.state())()
	bytes := from.listing.Bytes()
	span.Int("files", int64(len(from.listing.Objects))).Int("bytes", bytes).End("")
	source := said(m.Source, opt)
	opt.Log.Info("mounted", "source", source, "files", len(from.listing.Objects), "bytes", bytes, "seconds", time.Since(began).Seconds(), "version", opt.Version)
	report.Ready(fmt.Sprintf("%s is mounted on %s: %s, in %.2f s", source, m.Point, from.what(), time.Since(began).Seconds()))
	if !m.Foreground {
		tellNotes(ctx, mount, report)
	}
	report.Close()
	err = untilUnmounted(mount, opt.Log, signals, served)
	if err == nil && from.ended != nil {
		from.ended()
	}
	opt.Log.Info("unmounted", "seconds", time.Since(began).Seconds())
	return err
}

// making returns a context for making a mount. It ends when the source gives nothing, and when the command that waits for the mount is gone.
// why turns an error into the reason.
func (m *Mount) making(ctx context.Context, life *handover.Life, report *ready.Report) (making context.Context, why func(error) error, made func()) {
	if life.Adopts() { // there are readers, who wait as long as each of their reads may
		return ctx, func(err error) error { return err }, func() {}
	}
	wanted, end := context.WithCancel(ctx)
	stop := report.Abandoned(end)
	making, why = m.Dataset.UntilDark(wanted)
	return making, why, func() { stop(); end() }
}

// begin makes the mount of a source.
func (m *Mount) begin(ctx context.Context, from *source, opt fs.Options) (*fs.Mount, error) {
	if err := m.places.makePoint(); err != nil {
		return nil, err
	}
	mount, err := fs.New(ctx, m.Point, from.listing, opt)
	if err == nil && from.mounted != nil {
		err = from.mounted()
	}
	return mount, err
}

// awaitTurn has a spare wait before it opens a cache: two daemons of one mount would each evict the other's segments.
func (m *Mount) awaitTurn(ctx context.Context, life *handover.Life) error {
	if !life.Spare() || m.Dataset.CacheDir == "" {
		return nil
	}
	_, err := life.Prepared(ctx, func() error { return nil })
	return err
}

// keepIdleProcessor raises GOMAXPROCS above the number of threads that wait for requests. go-fuse keeps as many as GOMAXPROCS
// and one more, 3 at least. Where no processor of Go's scheduler is idle, its monitor wakes every 20 us and takes processors
// from the waiting threads. That is a quarter of the daemon's CPU time for opening and closing a small file.
func keepIdleProcessor() { runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 2) + 2) }

// beside runs f until it returns, and closes over then.
func beside(f func()) (over <-chan struct{}) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	return ended
}

// unmounter is a mount as signals end it.
type unmounter interface {
	Unmount() error
	Detach() error
}

// untilUnmounted waits for the end of the mount. The first signal unmounts it; if it is in use, it is taken out of the
// tree and served until the last file is closed. A second signal ends the daemon at once.
func untilUnmounted(mount unmounter, log *slog.Logger, signals <-chan os.Signal, served <-chan struct{}) error {
	for asked := 0; ; asked++ {
		select {
		case <-served:
			return nil
		case s := <-signals:
			if asked > 0 {
				return fmt.Errorf("ended by a second %v with files open", s)
			}
			err := mount.Unmount()
			if errors.Is(err, mountpoint.ErrBusy) {
				log.Warn("detached; serving until the last file is closed", "signal", s.String(), "reason", err)
				err = mount.Detach()
			}
			if err != nil {
				log.Error("cannot unmount", "error", err)
			}
		}
	}
}

// openTracer makes the tracer that the environment asks for. A mount is worth more than its traces: where they cannot be, the log
// says so, and there are none.
func openTracer(version string, log *slog.Logger) *trace.Tracer {
	tracer, err := trace.FromEnv(version, log)
	if err != nil {
		log.Warn(err.Error())
	}
	return tracer
}

// closeTracer sends the last spans, if the collector takes them soon.
func closeTracer(tracer *trace.Tracer) {
	const soon = 3 * time.Second // somebody may wait for the end of the daemon
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	_ = tracer.Close(ctx) // the log names lost spans
}
