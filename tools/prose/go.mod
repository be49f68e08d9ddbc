module github.com/hbmfs/hbmfs/tools/prose

go 1.26.0
