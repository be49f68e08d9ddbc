// Command drain measures hbmfs checkpoint drain beside rclone copy, and its cost for programs that write to the same disk.
//
//	go run ./tests/bench/drain --hbmfs bin/hbmfs --rclone rclone [--dir DIR] [--rounds 5] [--writes]
//
// The S3 server is this program: it counts and drops its input, so that the clients are measured. One round has each client copy
// one checkpoint to a new place, in turn.
//
// With --writes a program writes files of 1 GiB past the page cache and syncs them, as training that saves does, alone and beside a drain
// that reads from the disk, in turn.
package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "drain:", err)
		stop()
		os.Exit(1)
	}
}

// bench is the checkpoint, the server, and the binaries.
type bench struct {
	hbmfs, rclone string
	work          string
	files         int
	size          int64
	sink          *sink
	places        int
}

func run(ctx context.Context) (err error) {
	b := &bench{}
	pflag.StringVar(&b.hbmfs, "hbmfs", "bin/hbmfs", "the built binary")
	pflag.StringVar(&b.rclone, "rclone", "rclone", "the rclone to compare with")
	dir := pflag.String("dir", "", "where the checkpoint is put (a directory on a real disk; default: the temporary one)")
	rounds := pflag.Int("rounds", 5, "rounds")
	writes := pflag.Bool("writes", false, "measure programs that write to the same disk")
	seconds := pflag.Duration("time", 8*time.Second, "with --writes: how long each is measured")
	pflag.IntVar(&b.files, "files", 8, "files of the checkpoint")
	pflag.Int64Var(&b.size, "size", 256<<20, "bytes of each")
	pflag.Parse()
	if b.work, err = os.MkdirTemp(*dir, "hbmfs-drain-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.work)) }()
	if b.sink, err = newSink(); err != nil {
		return err
	}
	defer b.sink.close()
	if err := b.publish(ctx); err != nil {
		return err
	}
	if *writes {
		return b.beside(ctx, *rounds, *seconds)
	}
	return b.clients(ctx, *rounds)
}

// publish makes the checkpoint.
func (b *bench) publish(ctx context.Context) error {
	d, err := checkpoint.Begin(ctx, filepath.Join(b.work, "step-1"), checkpoint.Part{Of: 1})
	if err != nil {
		return err
	}
	defer func() { _ = d.Drop() }() // it was published
	random, chunk := rand.NewChaCha8([32]byte{1}), make([]byte, checkpoint.Chunk)
	var files []checkpoint.File
	for i := range b.files {
		f := checkpoint.File{Name: fmt.Sprintf("__%d_0.distcp", i), Size: b.size}
		to, err := os.Create(filepath.Join(d.Dir(), f.Name))
		if err != nil {
			return err
		}
		for at := int64(0); at < b.size && err == nil; at += checkpoint.Chunk {
			p := chunk[:min(checkpoint.Chunk, b.size-at)]
			_, _ = random.Read(p) // it never fails
			f.Sums = append(f.Sums, crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
			_, err = to.Write(p)
		}
		if err := errors.Join(err, to.Sync(), to.Close()); err != nil {
			return err
		}
		files = append(files, f)
	}
	return d.Publish(ctx, files)
}

// result is one copy.
type result struct{ rate, cpu, memory float64 } // bytes a second, seconds a GB, bytes

func (b *bench) clients(ctx context.Context, rounds int) error {
	all := map[string][]result{}
	names := []string{"rclone", "rclone, no checksums", "hbmfs"}
	for i := range rounds {
		for _, name := range names {
			r, err := b.copy(ctx, name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			fmt.Fprintf(os.Stderr, "round %d: %-22s %.2f GB/s, %.2f CPU s/GB, %.0f MB\n", i+1, name, r.rate/1e9, r.cpu, r.memory/1e6)
			all[name] = append(all[name], r)
		}
	}
	fmt.Printf("%d files of %d bytes in the page cache, %d rounds; medians, least and most\n", b.files, b.size, rounds)
	for _, name := range names {
		rates, cpus := column(all[name], func(r result) float64 { return r.rate / 1e9 }), column(all[name], func(r result) float64 { return r.cpu })
		ratios := []float64{}
		for i := range all[name] {
			ratios = append(ratios, all["hbmfs"][i].rate/all[name][i].rate)
		}
		slices.Sort(ratios)
		fmt.Printf("%-22s %.2f GB/s (%.2f to %.2f), %.2f CPU s/GB; hbmfs is %.2f of it (%.2f to %.2f)\n", name, median(rates), rates[0], rates[len(rates)-1], median(cpus), median(ratios), ratios[0], ratios[len(ratios)-1])
	}
	return nil
}

func column(all []result, of func(result) float64) (out []float64) {
	for _, r := range all {
		out = append(out, of(r))
	}
	slices.Sort(out)
	return out
}

func median(sorted []float64) float64 { return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2 }

// command is a client's copy to a new place.
func (b *bench) command(ctx context.Context, name string, flags ...string) *exec.Cmd {
	b.places++
	place := fmt.Sprintf("bucket/place-%d", b.places)
	if name == "hbmfs" {
		_ = os.RemoveAll(filepath.Join(b.work, ".hbmfs-drain")) // its journal is of another place
		args := append([]string{"checkpoint", "drain"}, flags...)
		return exec.CommandContext(ctx, b.hbmfs, append(args, b.work, "s3://"+place+"?endpoint="+b.sink.url)...)
	}
	args := []string{
		"copy", "--transfers", "16", "--s3-upload-concurrency", "4", "--s3-chunk-size", "32M", "--s3-upload-cutoff", "32M", "--checkers", "16", "--buffer-size", "32M",
		"--s3-no-check-bucket", "--s3-no-head", "--s3-use-multipart-etag=false", "--ignore-times", "--no-check-dest", "--no-traverse",
	}
	if name != "rclone" {
		args = append(args, "--s3-disable-checksum", "--ignore-checksum", "--s3-use-unsigned-payload=true")
	}
	return exec.CommandContext(ctx, b.rclone, append(args, filepath.Join(b.work, "step-1"), ":s3,provider=Minio,endpoint='"+b.sink.url+"',env_auth=true:"+place+"/step-1")...)
}

func (b *bench) environment() []string {
	return append(os.Environ(), "AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret", "AWS_REGION=us-east-1", "NO_PROXY=*", "RCLONE_CONFIG=/dev/null")
}

func (b *bench) copy(ctx context.Context, name string) (r result, err error) {
	var flags []string
	if name == "hbmfs" {
		flags = []string{"--rate-limit", "none"}
	}
	cmd := b.command(ctx, name, flags...)
	cmd.Env = b.environment()
	was, began := b.sink.bytes.Load(), time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return r, fmt.Errorf("%w: %s", err, out)
	}
	took, total := time.Since(began), b.sink.bytes.Load()-was
	if want := int64(b.files) * b.size; total < want || total > want+want/10 {
		return r, fmt.Errorf("it sent %d bytes, the checkpoint has %d", total, want)
	}
	r.rate = float64(total) / took.Seconds()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		r.memory = float64(usage.Maxrss) * 1024
	}
	r.cpu = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds() / (float64(total) / 1e9)
	return r, nil
}
