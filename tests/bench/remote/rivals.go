package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// contender mounts the bucket of a server.
type contender struct {
	name string
	// mount mounts at dir/mnt and keeps its files in dir.
	mount func(ctx context.Context, dir, url string) (*running, error)
}

// running is a mount and the process that serves it.
type running struct {
	point string
	pid   int
	end   func() error // unmounts
}

// cpu is the process's processor time so far.
func (r *running) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.pid))
	if err != nil {
		return 0, err
	}
	// proc(5): utime and stime are fields 14 and 15, of 10 ms; the name before field 3 may have spaces.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", r.pid, len(fields))
	}
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

func hbmfs(binary string, flags ...string) contender {
	return contender{"hbmfs", func(ctx context.Context, dir, url string) (*running, error) {
		return mountCached(ctx, binary, fmt.Sprintf("s3://%s/?endpoint=%s&region=%s", bucket, url, region), dir, flags...)
	}}
}

// mountCached mounts a source at dir/mnt, with a cache beside.
func mountCached(ctx context.Context, binary, source, dir string, flags ...string) (*running, error) {
	point := filepath.Join(dir, "mnt")
	args := append([]string{"mount", "--cache-dir", filepath.Join(dir, "cache"), "--log-file", filepath.Join(dir, "log")}, flags...)
	if err := command(ctx, binary, append(args, source, point)...); err != nil {
		return nil, err
	}
	r := &running{point: point}
	r.end = func() error {
		if err := command(context.WithoutCancel(ctx), binary, "umount", point); err != nil || r.pid == 0 {
			return err
		}
		if !blackbox.Within(time.Minute, func() bool { return blackbox.Ended(r.pid) }) { // it may still publish segments
			return fmt.Errorf("the mount's process %d has not ended within a minute", r.pid)
		}
		return nil
	}
	b, err := blackbox.NewBinary(binary)
	if err == nil {
		r.pid, err = b.At(point).DaemonPID()
	}
	if err != nil {
		return nil, errors.Join(err, r.end())
	}
	return r, nil
}

// rclone mounts as its documentation says for S3: --use-server-modtime saves a request for each file.
func rclone(name, binary string, flags ...string) contender {
	return contender{name, func(ctx context.Context, dir, url string) (*running, error) {
		args := append([]string{
			"mount", fmt.Sprintf(":s3,provider=Other,env_auth=true,region=%s,force_path_style=true,endpoint='%s':%s", region, url, bucket), filepath.Join(dir, "mnt"),
			"--config", os.DevNull, "--cache-dir", filepath.Join(dir, "cache"), "--vfs-cache-mode", "full", "--read-only", "--use-server-modtime",
		}, flags...)
		return foreground(ctx, dir, binary, args...)
	}}
}

// s3fs has -o multipart_size and parallel_count at values that let it ask for 16 parts at once.
func s3fs(binary string) contender {
	return contender{"s3fs", func(ctx context.Context, dir, url string) (*running, error) {
		return foreground(ctx, dir, binary, bucket, filepath.Join(dir, "mnt"), "-f", "-o", "ro,use_path_request_style,url="+url+",endpoint="+region,
			"-o", "use_cache="+filepath.Join(dir, "cache"), "-o", "parallel_count=16,multipart_size=8")
	}}
}

// foreground starts a program that mounts dir/mnt and stays until it is unmounted.
func foreground(ctx context.Context, dir, binary string, args ...string) (*running, error) {
	point, log := filepath.Join(dir, "mnt"), filepath.Join(dir, "log")
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the program has its own
	cmd := exec.Command(binary, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), awsKeys()...), out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	end := func() error {
		err := command(context.WithoutCancel(ctx), "fusermount3", "-u", point)
		if err != nil {
			_ = cmd.Process.Signal(syscall.SIGTERM) // so that it ends all the same
		}
		return errors.Join(err, cmd.Wait())
	}
	up := blackbox.Within(time.Minute, func() bool {
		mounted, err := blackbox.IsMounted(point)
		return err == nil && mounted
	})
	if !up {
		said, _ := os.ReadFile(log) // the error stands without it
		return nil, errors.Join(fmt.Errorf("%s does not mount: %s", binary, said), end())
	}
	return &running{point, cmd.Process.Pid, end}, nil
}

func command(ctx context.Context, binary string, args ...string) error {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), awsKeys()...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", binary, args[0], err, out)
	}
	return nil
}

// with runs do on a new mount with an empty cache, and leaves nothing of it, no dirty pages either.
func (c contender) with(ctx context.Context, work, url string, do func(*running) error) (err error) {
	dir, err := os.MkdirTemp(work, "c-")
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(dir))
		unix.Sync()
	}()
	if err := os.Mkdir(filepath.Join(dir, "mnt"), 0o755); err != nil {
		return err
	}
	r, err := c.mount(ctx, dir, url)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	defer func() { err = errors.Join(err, r.end()) }()
	if err := do(r); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}
