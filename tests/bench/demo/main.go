// Command demo shows hbmfs to a new user, from text to verified reads, in a minute or two.
//
//	make demo
//
// It tokenizes the Go source tree, which every machine with Go has, into real Megatron shards; mounts them;
// reads every file through the mount, all tokens through a view, and both again past the mount; compares each with
// the origin by SHA-256; prints the rates; saves checkpoints, one of which is killed; and unmounts. All of it is in a temporary
// directory, removed at the end, also on Ctrl-C.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run plays the demo. Also after a failure it leaves nothing mounted and no file behind.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	program := flags.String("hbmfs", "bin/hbmfs", "the `program` to show")
	text := flags.String("text", "", "`directory` of Go source to tokenize (default: the Go toolchain's own)")
	limitMiB := flags.Int64("limit-mib", 40, "tokenize about this much text, in MiB")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	binary, err := blackbox.NewBinary(*program)
	if err != nil {
		return err
	}
	if *text == "" {
		if *text, err = goSource(ctx); err != nil {
			return err
		}
	}
	work, err := os.MkdirTemp("", "hbmfs-demo-")
	if err != nil {
		return fmt.Errorf("make a work directory: %w", err)
	}
	d := &demo{binary: binary, out: out, data: filepath.Join(work, "data"), mnt: filepath.Join(work, "mnt"), ckpt: filepath.Join(work, "ckpt")}
	defer func() {
		// A mount that is still there would make the removal reach through it.
		if mounted, e := blackbox.IsMounted(d.mnt); e != nil || mounted {
			err = errors.Join(err, e, fmt.Errorf("%s is still mounted, and %s is kept", d.mnt, work))
			return
		}
		if e := os.RemoveAll(work); e != nil {
			err = errors.Join(err, e)
		} else if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("interrupted, and nothing is left behind: %w", err)
		}
	}()
	if err := os.Mkdir(d.mnt, 0o755); err != nil {
		return fmt.Errorf("make the mountpoint: %w", err)
	}
	return d.play(ctx, *text, *limitMiB<<20)
}

// goSource asks the toolchain where its source is.
func goSource(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find the Go source tree (name another with --text): %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(root)), "src"), nil
}

// demo is one performance: where it plays and to whom.
type demo struct {
	binary    blackbox.Binary
	out       io.Writer
	data, mnt string
	ckpt      string // the directory of checkpoints
}

func (d *demo) play(ctx context.Context, text string, limit int64) (err error) {
	sources, size, err := pickSources(text, limit)
	if err != nil {
		return err
	}
	d.say("\n1. Tokenize %.1f MiB of Go source (%d directories of %s) with GPT-2's vocabulary",
		float64(size)/(1<<20), len(sources), text)
	pack := []string{"pack", "--to", "megatron", "--name", "gosrc", "--shard-tokens", "5M", "--include", "*.go"}
	d.say("   $ hbmfs %s %s/... data", strings.Join(pack, " "), filepath.Base(text))
	if err := d.show(ctx, append(append(pack, sources...), d.data)...); err != nil {
		return err
	}

	d.say("\n2. What is it?\n   $ hbmfs inspect data")
	if err := d.show(ctx, "inspect", d.data); err != nil {
		return err
	}

	d.say("\n3. Mount it\n   $ hbmfs mount data mnt")
	start := time.Now()
	m, err := d.binary.Mount(ctx, d.data, d.mnt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	d.say("   ready after %.0f ms", time.Since(start).Seconds()*1000)

	set, err := openSet(d.data, m)
	if err != nil {
		return err
	}
	d.say("\n4. Compare every byte with the origin (SHA-256)")
	if err := d.verify(ctx, set); err != nil {
		return err
	}
	d.say("\n5. Read past the mount: extents and shards by the control channel\n   $ hbmfs read --to host FILE")
	if err := d.bypass(ctx, set); err != nil {
		return err
	}
	d.say("\n6. Rates, reading 1 MiB at a time with one thread")
	if err := d.rates(ctx, set); err != nil {
		return err
	}

	d.say("\n7. Save checkpoints from Python, kill -9 in the middle of one, load and verify")
	if err := d.checkpoints(ctx); err != nil {
		return err
	}

	d.say("\n8. Unmount\n   $ hbmfs umount mnt")
	if err := m.Close(); err != nil {
		return err
	}
	d.say("\nAll %d files and the view are bit-exact. Now your own:  hbmfs mount /data/pile /mnt/pile", len(set.names))
	return nil
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// show runs an hbmfs command and shows its output, indented. Its progress goes to the terminal.
func (d *demo) show(ctx context.Context, args ...string) error {
	cmd := d.binary.Command(ctx, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) {
		d.say("   %s", strings.TrimRight(strings.NewReplacer(d.data, "data", d.ckpt, "ckpt").Replace(line), "\n"))
	}
	if err != nil {
		return fmt.Errorf("hbmfs %s: %w", args[0], err)
	}
	return nil
}

// pickSources takes the tree's directories in order of name until they hold limit bytes of Go source. The
// compilers below cmd and vendored code are left out: much of it is generated tables.
func pickSources(tree string, limit int64) (dirs []string, total int64, err error) {
	entries, err := os.ReadDir(tree)
	if err != nil {
		return nil, 0, fmt.Errorf("read the text: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == "cmd" || e.Name() == "vendor" || e.Name() == "testdata" {
			continue
		}
		dir := filepath.Join(tree, e.Name())
		size, err := goBytes(dir)
		if err != nil {
			return nil, 0, err
		}
		if size == 0 || total+size > limit {
			continue
		}
		dirs, total = append(dirs, dir), total+size
	}
	if total == 0 {
		return nil, 0, fmt.Errorf("read the text: %s holds no Go source within the limit of %d bytes", tree, limit)
	}
	return dirs, total, nil
}

// goBytes sums the sizes of the .go files below dir.
func goBytes(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || filepath.Ext(path) != ".go" {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		total += info.Size()
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read the text: %w", err)
	}
	return total, nil
}
