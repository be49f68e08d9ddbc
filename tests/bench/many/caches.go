package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

const config = `daemon off; master_process off; pid pid; error_log log warn; worker_rlimit_nofile 4096;
events { worker_connections 2048; }
http {
  access_log off; sendfile on;
  client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; uwsgi_temp_path temp; scgi_temp_path temp;
  proxy_cache_path cache levels=1:2 keys_zone=shards:64m max_size=1000g inactive=7d use_temp_path=off;
  server {
    listen ADDRESS;
    location / {
      slice 4m;
      proxy_cache shards;
      proxy_cache_key $uri$slice_range;
      proxy_cache_valid 200 206 7d;
      proxy_cache_lock on; proxy_cache_lock_timeout 60s; proxy_cache_lock_age 60s;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Range $slice_range;
      proxy_pass ORIGIN;
    }
  }
}
`

// startCache starts a cache before the origin.
func (b *bench) startCache(ctx context.Context, dir string, number int) (url string, cmd *exec.Cmd, err error) {
	address, enter := "127.0.0.1:0", []string(nil)
	if b.network != nil {
		if address, enter, err = b.network.enter(200 + number); err != nil {
			return "", nil, err
		}
		address += ":8080"
	} else {
		free, err := net.Listen("tcp", address)
		if err != nil {
			return "", nil, err
		}
		address = free.Addr().String()
		if err := free.Close(); err != nil {
			return "", nil, err
		}
	}
	args := []string{b.nginx, "-p", dir, "-e", "log", "-c", "nginx.conf"}
	text := strings.NewReplacer("ADDRESS", address, "ORIGIN", b.origin).Replace(config)
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "temp"), 0o755), os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(text), 0o644)); err != nil {
		return "", nil, err
	}
	if b.rclone != "" {
		args = []string{
			b.rclone, "serve", "s3", "origin:", "--addr", address, "--auth-key", accessKey + "," + secretKey, "--vfs-cache-mode", "full",
			"--cache-dir", filepath.Join(dir, "cache"), "--vfs-read-chunk-size", "1M", "--vfs-read-chunk-size-limit", "1M", "--buffer-size", "0", "--dir-cache-time", "1h",
		}
	}
	args = append(enter, args...)
	cmd = exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "RCLONE_CONFIG="+filepath.Join(dir, "rclone.conf"), "RCLONE_CONFIG_ORIGIN_TYPE=s3", "RCLONE_CONFIG_ORIGIN_PROVIDER=Other",
		"RCLONE_CONFIG_ORIGIN_ENDPOINT="+b.origin, "RCLONE_CONFIG_ORIGIN_ACCESS_KEY_ID="+accessKey, "RCLONE_CONFIG_ORIGIN_SECRET_ACCESS_KEY="+secretKey,
		"RCLONE_CONFIG_ORIGIN_FORCE_PATH_STYLE=true", "RCLONE_LOG_LEVEL=ERROR")
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	for range 200 {
		if c, err := net.Dial("tcp", address); err == nil {
			return "http://" + address, cmd, c.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", cmd, fmt.Errorf("%s does not listen", args[0])
}

// startLiar starts a cache that answers with another version, another range or another length, by turns.
func (b *bench) startLiar() (url string, end func(), err error) {
	address := "127.0.0.1"
	if b.network != nil {
		address = b.network.address()
	}
	listen, err := net.Listen("tcp", address+":0")
	if err != nil {
		return "", nil, err
	}
	var turn atomic.Int64
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var from, to int64
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
			http.NotFound(w, r)
			return
		}
		size := b.size / int64(b.files)
		w.Header().Set("ETag", fmt.Sprintf(`"%s"`, filepath.Base(r.URL.Path)))
		switch turn.Add(1) % 3 {
		case 0:
			w.Header().Set("ETag", `"another"`)
		case 1:
			from++ // not down: at 0 it would be right, and nobody sees other bytes under the right version
		default:
			to--
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, size))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(make([]byte, max(0, min(to-from+1, 1<<20)))) // the node has gone by now, perhaps
	})}
	go func() { _ = server.Serve(listen) }() // ends with Close
	return "http://" + listen.Addr().String(), func() { _ = server.Close() }, nil
}
