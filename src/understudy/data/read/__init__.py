"""Rows and images of episodes.

rows             columns of data files, in memory within a budget
response_text    texts that a policy learns to answer with
prompt_metadata  metadata of episodes as texts for prompts
columns          one parquet column as a numpy array
sensors          samples of sensors at their own rates, by time
video_frames     images from video files, by episode and frame
image_column     images that are stored in parquet rows
"""
